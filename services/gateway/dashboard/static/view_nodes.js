// Nodes with their pools and tiers, the links between them, and the instances on them.

import { h } from "./dom.js";
import { bytes, count, percent, ratio, seconds } from "./format.js";
import { card, code, empty, shares, state, table } from "./parts.js";

export function nodesView(store) {
  const { nodes, links, instances, index } = store.sections;
  return h("div", { class: "view" },
    h("h2", {}, "Nodes"),
    nodes.length ? h("div", { class: "nodes" }, nodes.map((node) => nodeCard(node, index)))
      : empty("No node is there. Start one: ", code("python -m services.transfer"),
        ", or the whole cluster: ", code("moonpool up"), "."),
    h("h2", {}, "Instances"),
    instanceCard(instances),
    h("h2", {}, "Links"),
    linkCard(links));
}

function nodeCard(node, index) {
  const { dram, ssd, rates } = node;
  const size = (slots) => bytes(slots * node.block_bytes);
  return h("section", { class: `card node ${node.state === "gone" ? "is-gone" : ""}`,
    "data-key": node.id },
    h("h3", {}, node.id, state(node.state)),
    dram.total ? [
      h("h4", {}, "DRAM pool ", h("span", { class: "soft" }, `${size(dram.total)}, ${
        count(dram.total)} slots of ${bytes(node.block_bytes)}`)),
      shares([
        { name: "cached", value: dram.sealed, colour: "local" },
        { name: "private", value: dram.private, colour: "disk" },
        { name: "being written", value: dram.writing, colour: "fetch" },
        { name: "free", value: dram.free, colour: "free" },
      ]),
      h("p", { class: "facts" }, watermark(dram), ` · ${count(dram.leased)} leased · ${
        count(dram.pinned)} pinned`),
    ] : empty("No worker has attached yet: the pool has no format."),
    h("h4", {}, "SSD tier ", ssd.state === "none" ? null : state(ssd.state)),
    ssd.state === "none"
      ? h("p", { class: "facts" }, "none: set ", code("MOONPOOL_SSD_DIR"), " to have one")
      : [shares([
        { name: "used", value: ssd.used, colour: "disk" },
        { name: "free", value: Math.max(0, ssd.total - ssd.used), colour: "free" },
      ]), h("p", { class: "facts" }, `reads ${bytes(rates.ssd_bytes_read_total)}/s, writes ${
        bytes(rates.ssd_bytes_written_total)}/s, ${count(ssd.errors)} errors`)],
    h("dl", {},
      fact("fetches", `${bytes(rates.bytes_fetched_total)}/s`),
      fact("streams in", `${bytes(rates.bytes_streamed_total)}/s`),
      fact("on the way", bytes(node.bytes_in_flight)),
      fact("evicted", count(node.evictions_total)),
      fact("bad checksums", count(node.checksum_failures_total)),
      fact("in the index", index ? `${count(index.nodes[node.id] ?? 0)} blocks` : "–"),
      fact("transports", node.transports.join(", ") || "–"),
      fact("attached", node.attached.join(", ") || "nobody")));
}

function watermark(dram) {
  const share = percent(ratio(dram.free, dram.total));
  if (dram.free >= dram.low) return `${share} free; makes room below ${count(dram.low)}`;
  return `${share} free, below the mark of ${count(dram.low)}: making room up to ${
    count(dram.high)}`;
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

function instanceCard(instances) {
  if (!instances.length) {
    return empty("No prefill or decode instance is there: ", code("moonpool up"), " starts some.");
  }
  const rows = instances.map((one) => ({
    key: `${one.role} ${one.id}`,
    kind: one.state === "gone" ? "is-gone" : null,
    cells: [one.id, one.role, one.node, state(one.state), count(one.queued_requests),
      count(one.running), load(one), one.role === "prefill" ? seconds(one.starts_in_s) : "–"],
  }));
  return h("section", { class: "card" }, table([["instance"], ["role"], ["node"], ["state"],
    ["queued", 1], ["running", 1], ["load"], ["starts in", 1]], rows, "Instances"));
}

function load(one) {
  if (one.role === "prefill") return `${count(one.queued_tokens)} tokens to compute`;
  const used = Math.max(0, one.capacity_tokens - one.free_tokens);
  const more = one.preempted ? `, ${count(one.preempted)} preempted` : "";
  return h("span", { class: "meter" },
    h("span", { class: "track small" }, h("span", { class: "part bg-decode",
      vars: { width: `${(ratio(used, one.capacity_tokens) * 100).toFixed(1)}%` } })),
    `${count(used)} of ${count(one.capacity_tokens)} tokens${more}`);
}

function linkCard(links) {
  if (!links.length) {
    return h("section", { class: "card" }, empty("Nothing has moved between nodes yet. ",
      code("moonpool demo"), " makes one node fetch from the other."));
  }
  const rows = links.map((link) => ({
    key: `${link.from} ${link.to}`,
    cells: [`${link.from} → ${link.to}`, state(link.health), `${bytes(link.bytes_per_s)}/s`,
      bytes(link.in_flight_bytes), bytes(link.moved_bytes)],
  }));
  return h("section", { class: "card" }, table([["link"], ["health"], ["now", 1],
    ["on the way", 1], ["moved", 1]], rows, "Links"));
}
