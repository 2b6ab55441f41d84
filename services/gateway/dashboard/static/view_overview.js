// The first view: how the cluster does now and did in the last minutes.

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { count, percent, ratio, seconds } from "./format.js";
import { SOURCES, card, code, empty, sourceShares, state, table, tile } from "./parts.js";

export function overviewView(store) {
  const { summary, cluster, instances } = store.sections;
  return h("div", { class: "view" },
    h("h2", { class: "sr" }, "Overview"),
    tiles(summary, cluster, instances),
    h("div", { class: "charts" }, charts(store)),
    h("div", { class: "two" },
      card("Where prompts came from", `Tokens of the last ${summary.span_s / 60} minutes by source.`,
        total(summary.tokens) ? sourceShares(summary.tokens) : noRequest()),
      predictions(cluster)),
    processes(cluster));
}

export const noRequest = () => empty("No request yet: try ", code("moonpool chat"), " or ",
  code("moonpool demo"), ".");

const total = (tokens) => Object.values(tokens).reduce((sum, one) => sum + one, 0);

function tiles(summary, cluster, instances) {
  const { endings, ttft_s: ttft, tbt_s: tbt, tokens } = summary;
  const queued = instances.reduce((sum, one) => sum + one.queued_requests, 0);
  const running = instances.filter((one) => one.role === "decode")
    .reduce((sum, one) => sum + one.running, 0);
  const saved = total(tokens) - tokens.none;
  const span = `in ${summary.span_s / 60} min`;
  return h("div", { class: "tiles" },
    tile("Requests", count(summary.asked), `${span} · ${cluster.in_flight} in flight`),
    tile("TTFT, median", seconds(ttft.p50), `90 % within ${seconds(ttft.p90)}`),
    tile("TBT, median", seconds(tbt.p50), `90 % within ${seconds(tbt.p90)}`),
    tile("Tokens reused", percent(total(tokens) ? ratio(saved, total(tokens)) : null),
      `${count(saved)} of ${count(total(tokens))}`),
    tile("Effective capacity", percent(summary.effective_capacity),
      summary.effective_capacity === null ? "no target is set"
        : `${percent(summary.attainment)} of answered`),
    tile("Not answered", count(endings.refused + endings.failed),
      `${endings.refused} refused · ${endings.failed} failed`),
    tile("Prompts queued", count(queued), `${running} answers decoding`));
}

function charts(store) {
  const share = (name) => (step) => {
    const whole = total(step.tokens);
    return whole ? step.tokens[name] / whole : null;
  };
  const none = ["No request in the last minutes: try ", code("moonpool chat"), "."];
  return [
    chart(store, {
      title: "Prompt tokens by source", hint: "Shares of what each prompt's KV came from.",
      kind: "bars", max: 1, format: (value) => percent(value), empty: none,
      series: SOURCES.map(([name, text]) => ({ name: text, colour: name, value: share(name) })),
    }),
    chart(store, {
      title: "Time to first token", hint: "From the whole request to token 0.",
      kind: "line", format: seconds, empty: none,
      series: [
        { name: "median", colour: "compute", value: (step) => step.ttft_s.p50 },
        { name: "90 %", colour: "fetch", dash: true, value: (step) => step.ttft_s.p90 },
      ],
    }),
    chart(store, {
      title: "Targets", kind: "line", max: 1, format: (value) => percent(value),
      hint: "Attainment: of the answered. Effective capacity: of all asked, refused ones too.",
      empty: ["No request with a target. Set ", code("MOONPOOL_TTFT_SLO_MS"), " and ",
        code("MOONPOOL_TBT_SLO_MS"), " of the conductor, or ", code("x-moonpool-ttft-slo-ms"),
        " with a request."],
      series: [
        { name: "attainment", colour: "local", value: (step) => step.attainment },
        { name: "effective capacity", colour: "remote", dash: true,
          value: (step) => step.effective_capacity },
      ],
    }),
    chart(store, {
      title: "Requests", hint: "By how they ended, in steps of five seconds.",
      kind: "bars", format: count, least: 2, empty: none,
      series: [
        { name: "answered", colour: "local", value: (step) => step.endings.finished },
        { name: "refused", colour: "remote", value: (step) => step.endings.refused },
        { name: "failed", colour: "failed", value: (step) => step.endings.failed },
        { name: "client left", colour: "none", value: (step) => step.endings.cancelled },
      ],
    }),
  ];
}

function predictions(cluster) {
  const rows = Object.entries(cluster.prediction_errors).flatMap(([model, parts]) =>
    Object.entries(parts).map(([name, error]) => ({
      key: `${model} ${name}`,
      cells: [name, count(error.num_requests), percent(error.p50), percent(error.p90),
        `${error.bias > 0 ? "+" : ""}${percent(error.bias)}`],
    })));
  return card("How far predictions are off",
    "Of the conductor's own, as shares of the real time; bias above 0: it takes longer.",
    rows.length
      ? table([["part"], ["requests", 1], ["median", 1], ["90 %", 1], ["bias", 1]], rows,
        "Prediction errors")
      : empty("Nothing to compare yet: it learns from each request."));
}

function processes(cluster) {
  return card("Processes", null, h("ul", { class: "processes" }, cluster.processes.map((one) =>
    h("li", { "data-key": `${one.service} ${one.id}` }, state(one.state), h("b", {}, one.id),
      one.service === one.id ? null : h("span", { class: "soft" }, one.service)))));
}
