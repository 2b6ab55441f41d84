// One request: its bill beside the prediction, and each decision with all that was weighed.

import { h } from "./dom.js";
import { bytes, count, pathText, seconds } from "./format.js";
import { key as adminKey } from "./login.js";
import { empty, sourceShares, state, table } from "./parts.js";
import { elsewhere, endOf, timeline } from "./timeline.js";

const MAX_KEPT = 20;
const details = new Map(); // by key: what the gateway said, or {problem}
let redraw = () => {};

export function forgetDetails(draw) {
  redraw = draw;
}

async function load(key) {
  details.set(key, null);
  if (details.size > MAX_KEPT) details.delete(details.keys().next().value);
  const headers = adminKey() ? { authorization: `Bearer ${adminKey()}` } : {};
  try {
    const response = await fetch(`requests/${encodeURIComponent(key)}`, { headers });
    const body = await response.json();
    details.set(key, response.ok ? body : { problem: body.error.message });
  } catch (error) {
    details.set(key, { problem: `The gateway did not answer: ${error.message}` });
  }
  redraw();
}

export function detailView(row) {
  if (!details.has(row.key)) load(row.key);
  const detail = details.get(row.key);
  if (!detail) return h("div", { class: "detail" }, empty("Asking the gateway…"));
  if (detail.problem) return h("div", { class: "detail" }, empty(detail.problem));
  return h("div", { class: "detail" },
    h("p", { class: "facts" }, `${detail.request_id} at ${detail.gateway}`,
      detail.tenant ? ` · tenant ${detail.tenant}` : null,
      detail.user ? ` · user ${detail.user}` : null, ` · ${detail.model}`),
    row.real ? [timeline(row, endOf(row)), h("div", { class: "billed" },
      h("div", {}, stages(row)),
      h("div", {}, h("h4", {}, "Where the prompt's KV came from, in tokens"),
        sourceShares(row.tokens), moved(row)))] : null,
    detail.decisions.length
      ? detail.decisions.map((decision) => decisionView(decision, detail.bill))
      : empty("No conductor was asked: the gateway itself refused it."));
}

function stages(row) {
  const { predicted, real } = row;
  const decode = Math.max(0, row.decode_s - real.handoff_s);
  const line = (name, before, after) => ({ key: name, cells: [name, before === null ? "–"
    : seconds(before), seconds(after), before === null ? "–" : difference(after - before)] });
  return table([["stage"], ["predicted", 1], ["real", 1], ["difference", 1]], [
    line("queue", predicted.queue_s, real.queue_s),
    line("fetch", predicted.load_s, real.load_s),
    line("compute", predicted.compute_s, real.compute_s),
    line("outside these", null, elsewhere(real)),
    line("to token 0 (TTFT)", predicted.ttft_s, real.ttft_s),
    line("transfer to decode", predicted.handoff_s, real.handoff_s),
    line("decode", null, decode),
    line("between tokens (TBT)", predicted.tbt_s, real.tbt_s),
  ], "Stages");
}

const difference = (value) => (value === 0 ? "0" : `${value > 0 ? "+" : "−"}${
  seconds(Math.abs(value))}`);

function moved(row) {
  return h("p", { class: "facts" }, `fetched ${bytes(row.fetched_bytes)}, streamed to decode ${
    bytes(row.streamed_bytes)}, over ${row.transport}`, row.scored_tokens
    ? `; ${count(row.scored_tokens)} prompt tokens scored, so computed even where cached` : null);
}

function decisionView(decision, bill) {
  const { placement, losers, refusal, counts } = decision;
  const isLast = placement && bill && bill.prefill.incarnation === placement.prefill.incarnation;
  const rows = [];
  if (placement) rows.push(winner(placement, isLast ? bill : null));
  rows.push(...losers.map((one, at) => candidate(one, `${at} ${one.prefill.id}`, one.reason)));
  const rest = Object.entries(counts).filter(([reason]) => reason)
    .map(([reason, number]) => `${count(number)} × ${reason}`);
  return h("section", { class: "decision" },
    h("h4", {}, `Attempt ${decision.attempt + 1}: `, placement
      ? `${pathText(placement.prefill.id, placement.decode?.id)}, by ${placement.policy}`
      : state("refused")),
    refusal ? h("p", {}, h("code", {}, refusal.code), ` ${refusal.message}`, targets(refusal)) : null,
    rows.length ? table([["prefill"], ["node"], ["local", 1], ["fetched", 1], ["queue", 1],
      ["fetch", 1], ["compute", 1], ["TTFT", 1], ["TBT", 1], ["verdict"]], rows,
    "Candidates") : null,
    rest.length ? h("p", { class: "facts" }, `All that lost: ${rest.join(", ")}.`) : null,
    placement?.source ? h("p", { class: "facts" }, `Fetches ${count(placement.source.num_blocks)
    } blocks from ${[placement.source, ...placement.source.others].map((one) => one.node.id)
      .join(" and ")}.`) : null);
}

function winner(placement, bill) {
  const remote = placement.source
    ? Math.max(0, placement.source.num_blocks - placement.local_blocks) : 0;
  const verdict = bill ? `chosen; really ${seconds(bill.real.ttft_s)}` : "chosen";
  return { ...candidate({ ...placement, remote_blocks: remote }, "chosen", verdict), kind: "is-chosen" };
}

function candidate(one, key, verdict) {
  const { predicted } = one;
  const tbt = one.decode ? seconds(predicted.tbt_s) : "–"; // a loser has no decode instance
  return { key, cells: [one.prefill.id, one.prefill.node, count(one.local_blocks),
    count(one.remote_blocks), seconds(predicted.queue_s), seconds(predicted.load_s),
    seconds(predicted.compute_s), seconds(predicted.ttft_s), tbt, verdict] };
}

function targets({ targets: found }) {
  if (!found) return null;
  const pair = (name, predicted, allowed) => (allowed === null ? null
    : ` ${name} predicted ${seconds(predicted)}, allowed ${seconds(allowed)}.`);
  return [pair("TTFT", found.predicted_ttft_s, found.allowed_ttft_s),
    pair("TBT", found.predicted_tbt_s, found.allowed_tbt_s)];
}
