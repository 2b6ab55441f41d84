// Charts over the feed's steps: bars that are stacked, and lines. Small SVG, labels in HTML.

import { h } from "./dom.js";
import { ago } from "./format.js";

let pointedAt = null; // a share of the width, 0 to 1

/**
 * `series`: [{name, colour, value: (step) => number | null}]; `kind`: "bars" or "line".
 * Steps without a request are not in `store`: bars have a gap there, lines go on.
 */
export function chart(store, { title, hint, kind, series, format, max, least = 0, empty }) {
  const { steps, step_s: step, span_s: span } = store.sections.series;
  const now = store.now();
  const points = steps.filter((one) => one.start_s + step > now - span);
  const top = max ?? nice(Math.max(least, ...points.map((one) => height(series, one, kind))));
  const has = points.some((one) => series.some((line) => line.value(one) !== null));
  const draw = kind === "bars" ? bars : lines;
  return h("figure", { class: "card chart", "data-key": title },
    h("figcaption", {}, h("h3", {}, title), h("p", { class: "hint" }, hint)),
    legend(series, points, { now, span, step, format }),
    has
      ? h("div", { class: "plot", "data-chart": "" },
        h("div", { class: "axis-y" }, h("span", {}, format(top)), h("span", {}, format(top / 2)),
          h("span", {}, format(0))),
        h("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
          [0, 50, 100].map((y) => h("line", { class: "grid", x1: 0, x2: 1000, y1: y, y2: y })),
          draw(points, series, { now, span, step, top }),
          pointedAt === null ? null : h("line", { class: "pointer", x1: pointedAt * 1000,
            x2: pointedAt * 1000, y1: 0, y2: 100 })),
        h("div", { class: "axis-x" }, h("span", {}, ago(span)), h("span", {}, ago(span / 2)),
          h("span", {}, "now")))
      : h("p", { class: "empty" }, empty));
}

/** The value under the pointer, else the latest. */
function legend(series, points, { now, span, step, format }) {
  const time = pointedAt === null ? null : now - span * (1 - pointedAt);
  const shown = time === null ? points.at(-1)
    : points.find((one) => one.start_s <= time && time < one.start_s + step);
  return h("ul", { class: "legend" }, series.map((line) => {
    const value = shown ? line.value(shown) : null;
    return h("li", {}, h("i", { class: `dot bg-${line.colour}` }), line.name, " ",
      h("b", {}, value === null ? "–" : format(value)));
  }), h("li", { class: "when" }, time === null ? "latest step" : ago(now - time)));
}

function bars(points, series, { now, span, step, top }) {
  const width = Math.max(2, (step / span) * 1000 - 1);
  return points.map((one) => {
    const x = x_of(one.start_s, now, span);
    let used = 0;
    return series.map((line) => {
      const part = Math.min(100 - used, ((line.value(one) ?? 0) / (top || 1)) * 100);
      used += part;
      return part > 0
        ? h("rect", { class: `fill-${line.colour}`, x, width, y: 100 - used, height: part })
        : null;
    });
  });
}

function lines(points, series, { now, span, step, top }) {
  return series.map((line) => {
    const known = points.filter((one) => line.value(one) !== null);
    const path = known.map((one) => {
      const x = x_of(one.start_s + step / 2, now, span).toFixed(1);
      return `${x},${(100 - Math.min(1, line.value(one) / (top || 1)) * 100).toFixed(2)}`;
    });
    if (path.length === 1) path.push(`${Number(path[0].split(",")[0]) + 6},${path[0].split(",")[1]}`);
    return h("polyline", { class: `line stroke-${line.colour} ${line.dash ? "dash" : ""}`,
      points: path.join(" ") });
  });
}

const x_of = (time, now, span) => Math.max(0, (1 - (now - time) / span) * 1000);

function height(series, one, kind) {
  const values = series.map((line) => line.value(one) ?? 0);
  return kind === "bars" ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values);
}

/** The next round number. */
function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((one) => one * power).find((one) => one >= value) ?? value;
}

/** Charts tell the values under the pointer. */
export function hover(root, draw) {
  const set = (value) => {
    if (value === pointedAt) return;
    pointedAt = value;
    draw();
  };
  root.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.("[data-chart]")?.querySelector("svg");
    if (!svg) return set(null);
    const box = svg.getBoundingClientRect();
    set(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
  });
  root.addEventListener("pointerleave", () => set(null));
}
