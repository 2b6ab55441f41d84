// What was not answered, and why.

import { h } from "./dom.js";
import { ago, count } from "./format.js";
import { card, empty, state, table } from "./parts.js";

const MAX_SHOWN = 50;

export function refusalsView(store) {
  const { summary } = store.sections;
  const bad = store.requests.filter((row) => ["refused", "failed"].includes(row.ending)).reverse();
  return h("div", { class: "view" },
    h("h2", {}, "Refusals and failures"),
    card("Why", `Of the last ${summary.span_s / 60} minutes: ${count(summary.endings.refused)
    } refused, ${count(summary.endings.failed)} failed on the way.`,
    summary.reasons.length
      ? h("ul", { class: "reasons" }, summary.reasons.map((one) =>
        h("li", { "data-key": `${one.ending} ${one.code}` },
          h("div", { class: "line" }, h("b", {}, `${count(one.count)} ×`), state(one.ending),
            h("code", {}, one.code),
            h("span", { class: "soft" }, `last ${ago(store.now() - one.last_s)}`)),
          h("p", {}, one.message))))
      : empty("Nothing was refused, and nothing failed.")),
    bad.length ? card("The last ones", null,
      table([["request"], ["ending"], ["reason"], ["when", 1], ["user"]],
        bad.slice(0, MAX_SHOWN).map((row) => ({ key: row.key, cells: [
          h("a", { class: "clip", href: `#requests/${encodeURIComponent(row.key)}` }, row.id),
          state(row.ending), h("code", {}, row.code ?? "–"), ago(store.now() - row.ended_s),
          row.user ?? row.tenant ?? "–"] })), "Refused requests")) : null);
}
