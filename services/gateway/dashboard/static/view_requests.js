// The last requests as timelines; one can be opened with all that was decided about it.

import { detailView, forgetDetails } from "./detail.js";
import { h } from "./dom.js";
import { ago, bytes, count, pathText, plural, seconds } from "./format.js";
import { SOURCES, empty, state } from "./parts.js";
import { endOf, stageLegend, timeline } from "./timeline.js";
import { noRequest } from "./view_overview.js";

const PAGE = 25;
const ORDERS = {
  newest: ["newest first", (row) => row.ended_s],
  ttft: ["longest TTFT first", (row) => row.real?.ttft_s ?? -1],
  total: ["longest first", (row) => row.took_s],
  prompt: ["longest prompt first", (row) => row.prompt_tokens],
};
const options = { text: "", order: "newest", ending: "", scale: "ttft", shown: PAGE };

export function requestsView(store, openKey) {
  const rows = chosen(store.requests);
  const visible = rows.slice(0, options.shown);
  const opened = store.byKey.get(openKey);
  if (opened && !visible.includes(opened)) visible.unshift(opened);
  return h("div", { class: "view" },
    h("h2", {}, "Requests"),
    h("div", { class: "controls" },
      h("label", {}, "find ", h("input", { type: "search", id: "find", "data-keep": "",
        placeholder: "id, user, instance" })),
      select("order", Object.entries(ORDERS).map(([name, [text]]) => [name, text])),
      select("ending", [["", "all endings"], ["finished", "answered"], ["refused", "refused"],
        ["failed", "failed"], ["cancelled", "client left"]]),
      select("scale", [["ttft", "scale: first token"], ["whole", "scale: whole answer"]]),
      h("span", { class: "soft" }, `${count(rows.length)} of the last ${
        count(store.requests.length)}`)),
    stageLegend(),
    store.requests.length === 0 ? noRequest()
      : rows.length === 0 ? empty("None of the last requests is like that.")
        : list(store, visible, openKey),
    rows.length > options.shown
      ? h("button", { type: "button", id: "more" }, `show ${PAGE} more`) : null);
}

function chosen(requests) {
  const text = options.text.toLowerCase();
  const isWanted = (row) => (!options.ending || row.ending === options.ending) && (!text ||
    [row.id, row.user, row.tenant, row.prefill, row.decode, row.code].some((one) =>
      one?.toLowerCase().includes(text)));
  const value = ORDERS[options.order][1];
  return requests.filter(isWanted).sort((one, other) => value(other) - value(one));
}

function list(store, rows, openKey) {
  const ends = rows.filter((row) => row.real).map((row) =>
    (options.scale === "whole" ? endOf(row) : Math.max(row.real.ttft_s, row.predicted.ttft_s)));
  const end = Math.max(0.001, ...ends);
  return h("ol", { class: "requests" }, rows.map((row) => h("li", { "data-key": row.key,
    class: `card request ${row.key === openKey ? "is-open" : ""}` },
  h("a", { class: "row", href: row.key === openKey ? "#requests" : `#requests/${
    encodeURIComponent(row.key)}`, "aria-expanded": row.key === openKey ? "true" : "false" },
  h("span", { class: "who" }, h("b", { class: "clip", title: row.id }, row.id),
    h("span", { class: "soft" }, ago(store.now() - row.ended_s),
      row.user ? h("span", { class: "clip" }, ` · ${row.user}`) : null)),
  row.real ? ran(row, end) : h("span", { class: "reason" }, state(row.ending), " ",
    row.code ? `${row.code}: ${row.message}` : `after ${seconds(row.took_s)}`,
    row.wasted_prefill_s ? ` (${seconds(row.wasted_prefill_s)} of prefill wasted)` : null)),
  row.key === openKey ? detailView(row) : null)));
}

function ran(row, end) {
  const target = row.is_met === null ? null
    : h("span", { class: `state ${row.is_met ? "is-good" : "is-bad"}` },
      row.is_met ? "✓ target met" : "✕ target missed");
  return [
    h("span", { class: "path" }, h("span", {}, pathText(row.prefill, row.decode)),
      h("span", { class: "soft" }, `${count(row.prompt_tokens)} + ${
        count(row.output_tokens)} tokens`, row.attempts > 1
        ? ` · ${plural(row.attempts, "attempt")}` : null)),
    h("span", { class: "from" }, sources(row.tokens),
      h("span", { class: "soft" }, sourceText(row))),
    h("span", { class: "bars" }, timeline(row, end)),
    h("span", { class: "ttft" }, h("b", {}, seconds(row.real.ttft_s)),
      h("span", { class: "soft" }, `predicted ${seconds(row.predicted.ttft_s)}`), target),
  ];
}

function sources(tokens) {
  const whole = Object.values(tokens).reduce((sum, one) => sum + one, 0) || 1;
  return h("span", { class: "track small" }, SOURCES.map(([name]) => h("span", {
    class: `part bg-${name}`, vars: { width: `${((tokens[name] / whole) * 100).toFixed(2)}%` } })));
}

function sourceText(row) {
  const parts = SOURCES.slice(1).filter(([name]) => row.tokens[name])
    .map(([name, text]) => `${count(row.tokens[name])} ${text}`);
  const moved = row.fetched_bytes + row.streamed_bytes;
  return [parts.join(", ") || "all computed", moved ? ` · ${bytes(moved)} moved` : ""].join("");
}

const select = (name, choices) => h("select", { id: name, "aria-label": name, "data-keep": "" },
  choices.map(([value, text]) => h("option", { value, selected: options[name] === value }, text)));

export function requestsHandlers(root, draw) {
  root.addEventListener("input", (event) => {
    const { id, value } = event.target;
    if (id === "find") options.text = value;
    else if (id in options) options[id] = value;
    else return;
    options.shown = PAGE;
    draw();
  });
  root.addEventListener("click", (event) => {
    if (event.target.id !== "more") return;
    options.shown += PAGE;
    draw();
  });
  forgetDetails(draw);
}
