// The prefixes that are used most, and which nodes hold them.

import { h } from "./dom.js";
import { count, percent } from "./format.js";
import { card, code, empty, state, tile } from "./parts.js";

export function prefixesView(store) {
  const { hot, nodes, index, cluster } = store.sections;
  const { replication } = cluster;
  return h("div", { class: "view" },
    h("h2", {}, "Prefixes"),
    index ? h("div", { class: "tiles" },
      tile("Different blocks", count(index.num_keys), `${count(index.num_blocks)} with replicas`),
      tile("Index memory", percent(index.mirror_fill), `${count(index.evicted_total)} let go`),
      tile("Redis", index.is_redis_up ? "up" : "away",
        index.is_redis_up ? "the index is kept" : "answers come from mirrors"),
      tile("Copies ahead of need", replication ? count(replication.copies_total) : "–",
        replication?.is_on ? `${count(replication.failed_total)} failed` : "replication is off"))
      : empty("No cache-index has answered yet."),
    card("Hot prefixes", "By use within about a minute; a mark says that the node holds all of it.",
      hot.length ? matrix(hot, nodes.map((node) => node.id))
        : empty("No prefix was used of late. Ask twice with the same long prompt: ",
          code("moonpool demo"), " does.")));
}

function matrix(hot, nodes) {
  const most = Math.max(...hot.map((one) => one.uses_per_s), 0.01);
  const names = [...new Set([...nodes, ...hot.flatMap((one) => one.nodes)])].sort();
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Hot prefixes" },
    h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}, "prefix"), h("th", { class: "num" }, "tokens"),
        h("th", {}, "uses a second"), h("th", { class: "num" }, "replicas"),
        names.map((name) => h("th", { class: "node-mark" }, name)))),
      h("tbody", {}, hot.map((one) => h("tr", { "data-key": one.key },
        h("td", {}, h("code", { title: one.key }, one.key.slice(0, 10))),
        h("td", { class: "num" }, count(one.num_tokens || one.num_blocks)),
        h("td", {}, h("span", { class: "meter" }, h("span", { class: "track small" },
          h("span", { class: "part bg-local",
            vars: { width: `${((one.uses_per_s / most) * 100).toFixed(1)}%` } })),
        one.uses_per_s.toFixed(2))),
        h("td", { class: "num" }, one.nodes.length || state("none left")),
        names.map((name) => h("td", { class: "node-mark" },
          one.nodes.includes(name)
            ? h("span", { class: "holds", title: `${name} holds it` }, "● holds") : "–")))))));
}
