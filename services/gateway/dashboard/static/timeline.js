// One request as a timeline: predicted behind, real in front. Fetching runs beside queueing.

import { h } from "./dom.js";
import { seconds } from "./format.js";

export const STAGES = [
  ["queue", "queue"],
  ["fetch", "fetch"],
  ["compute", "compute"],
  ["transfer", "transfer"],
  ["decode", "decode"],
];

/**
 * Spans in seconds from the request: [{stage, from, to, lane}]; lane 1 is beside lane 0. Between
 * the end of compute and token 0 there may be a gap: what gateway and bus took.
 */
export function spansOf(times, decode) {
  const start = Math.max(times.queue_s, times.load_s);
  const computed = start + times.compute_s;
  const first = Math.max(computed, times.ttft_s);
  const handed = first + times.handoff_s;
  const spans = [
    { stage: "queue", from: 0, to: times.queue_s, lane: 0 },
    { stage: "fetch", from: 0, to: times.load_s, lane: 1 },
    { stage: "compute", from: start, to: computed },
    { stage: "transfer", from: first, to: handed },
  ];
  // Decode is counted from token 0: the transfer is a part of it.
  if (decode > times.handoff_s) {
    spans.push({ stage: "decode", from: handed, to: first + decode });
  }
  return spans.filter((span) => span.to > span.from);
}

export const endOf = (row) => Math.max(0.001, ...spansOf(row.predicted, 0).map((one) => one.to),
  ...spansOf(row.real, row.decode_s).map((one) => one.to));

export function timeline(row, end) {
  const x = (time) => Math.min(1000, (time / end) * 1000);
  const bar = (span, kind, top, height) => h("rect", {
    class: `${kind} fill-${span.stage}`, x: x(span.from),
    width: Math.max(2, x(span.to) - x(span.from)),
    y: top + (span.lane === 1 ? height / 2 : 0),
    height: span.lane === undefined ? height : height / 2,
  });
  return h("svg", { class: "timeline", viewBox: "0 0 1000 28", preserveAspectRatio: "none",
    role: "img", "aria-label": `Timeline: ${described(row)}` },
  spansOf(row.predicted, 0).map((span) => bar(span, "predicted", 2, 24)),
  spansOf(row.real, row.decode_s).map((span) => bar(span, "real", 8, 12)));
}

/** Seconds of the TTFT that no stage accounts for. */
export const elsewhere = (times) => Math.max(0,
  times.ttft_s - Math.max(times.queue_s, times.load_s) - times.compute_s);

export function described(row) {
  const { real } = row;
  return `queue ${seconds(real.queue_s)}, fetch ${seconds(real.load_s)}, compute ${
    seconds(real.compute_s)}, transfer ${seconds(real.handoff_s)}, decode ${
    seconds(Math.max(0, row.decode_s - real.handoff_s))}`;
}

export function stageLegend() {
  return h("ul", { class: "legend" }, STAGES.map(([name, text]) =>
    h("li", {}, h("i", { class: `dot bg-${name}` }), text)),
  h("li", { class: "soft" }, h("i", { class: "dot ghost" }), "pale, behind: as predicted"));
}
