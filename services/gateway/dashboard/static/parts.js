// Parts that several views use.

import { h } from "./dom.js";
import { count, percent, ratio } from "./format.js";

export const SOURCES = [
  ["none", "computed"],
  ["local", "local pool"],
  ["remote", "other node"],
  ["disk", "SSD"],
];

export function card(title, hint, ...children) {
  return h("section", { class: "card", "data-key": title },
    h("h3", {}, title), hint ? h("p", { class: "hint" }, hint) : null, children);
}

export function empty(...children) {
  return h("p", { class: "empty" }, children);
}

export const code = (text) => h("code", {}, text);

/** A state in words, with a colour beside it. */
export function state(name) {
  const good = ["ready", "answers", "good", "finished", "on"];
  const soft = ["starting", "draining", "loading", "cancelled", "read_only"];
  const kind = good.includes(name) ? "is-good" : soft.includes(name) ? "is-soft" : "is-bad";
  const sign = { "is-good": "✓", "is-soft": "…", "is-bad": "✕" }[kind];
  return h("span", { class: `state ${kind}` }, h("i", { "aria-hidden": "true" }, sign), name);
}

export function tile(title, value, ...below) {
  return h("div", { class: "card tile", "data-key": title }, h("h3", {}, title),
    h("p", { class: "big" }, value), h("p", { class: "hint" }, below));
}

/** Parts of a whole as one bar, each with its text below: [{name, value, colour}]. */
export function shares(parts, { format = count, total } = {}) {
  const whole = total ?? parts.reduce((sum, part) => sum + part.value, 0);
  return h("div", { class: "shares" },
    h("div", { class: "track" }, parts.map((part) => h("span", {
      class: `part bg-${part.colour}`, title: `${part.name}: ${format(part.value)}`,
      vars: { width: percent(ratio(part.value, whole), 3).replace(" ", "") } }))),
    h("ul", { class: "legend" }, parts.map((part) => h("li", {},
      h("i", { class: `dot bg-${part.colour}` }), part.name, " ", h("b", {}, format(part.value))))));
}

export function sourceShares(tokens) {
  return shares(SOURCES.map(([name, text]) => ({ name: text, value: tokens[name], colour: name })));
}

/** Columns: [[title, isNumber], …]; rows of cells, with a key each. */
export function table(columns, rows, label) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, isNumber]) =>
        h("th", { scope: "col", class: isNumber ? "num" : null }, title)))),
      h("tbody", {}, rows.map(({ key, cells, kind }) => h("tr", { "data-key": key, class: kind },
        cells.map((cell, at) => h("td", { class: columns[at][1] ? "num" : null }, cell)))))));
}
