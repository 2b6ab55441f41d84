// Numbers and times as people read them.

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.01) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(digits)} %`;
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

export function ago(span) {
  const value = Math.max(0, Math.round(span));
  if (value < 60) return `${value} s ago`;
  if (value < 3600) return `${Math.floor(value / 60)} min ago`;
  return `${Math.floor(value / 3600)} h ago`;
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** Instances that a request ran at; one whose prompt alone was asked for has no decode. */
export const pathText = (prefill, decode) => (decode ? `${prefill} → ${decode}` : prefill);

export const ratio = (part, whole) => (whole > 0 ? part / whole : 0);
