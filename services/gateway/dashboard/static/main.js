// Puts the parts together: feed, views, header. One view is drawn, and only while it can be seen.

import { h, morph } from "./dom.js";
import { ago, plural } from "./format.js";
import { loginView, remember } from "./login.js";
import { store } from "./store.js";
import { startStream } from "./stream.js";
import { overviewView } from "./view_overview.js";
import { nodesView } from "./view_nodes.js";
import { prefixesView } from "./view_prefixes.js";
import { requestsView, requestsHandlers } from "./view_requests.js";
import { refusalsView } from "./view_refusals.js";
import { hover } from "./chart.js";

const VIEWS = {
  overview: ["Overview", overviewView],
  nodes: ["Nodes", nodesView],
  prefixes: ["Prefixes", prefixesView],
  requests: ["Requests", requestsView],
  refusals: ["Refusals", refusalsView],
};
const REDRAW_MS = 5000;
const at = (id) => document.getElementById(id);
let isDue = false;

function route() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  return name in VIEWS ? [name, decodeURIComponent(rest.join("/"))] : ["overview", ""];
}

export function draw() {
  if (isDue || document.hidden) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    drawHeader();
    const [name, argument] = route();
    const content = h("div", {});
    if (store.status === "locked") content.append(loginView(store.problem));
    else if (store.sections) content.append(VIEWS[name][1](store, argument));
    else content.append(h("p", { class: "empty" }, store.problem || "Connecting to the gateway…"));
    morph(at("view"), content);
    performance.mark(store.sections ? "moonpool-drawn" : "moonpool-waiting");
  });
}

function drawHeader() {
  const [current] = route();
  const cluster = store.sections?.cluster;
  const refused = store.sections?.summary.endings;
  const marks = { refusals: refused ? refused.refused + refused.failed : 0 };
  const tabs = Object.entries(VIEWS).map(([name, [title]]) =>
    h("a", { href: `#${name}`, "aria-current": name === current ? "page" : null }, title,
      marks[name] ? h("span", { class: "mark" }, marks[name]) : null));
  morph(at("tabs"), h("nav", {}, tabs));
  if (!cluster) return;
  const problems = cluster.problems;
  at("health").className = `pill ${problems.length ? "is-bad" : "is-good"}`;
  at("health").textContent = problems.length ? plural(problems.length, "problem") : "healthy";
  const models = cluster.models.map((model) => model.name).join(", ");
  at("about").textContent = [models || "no model", cluster.policy].filter(Boolean).join(" · ");
  const isLive = store.status === "live";
  at("live").textContent = isLive ? "● live" : "○ not live";
  at("live").className = `live ${isLive ? "is-good" : "is-bad"}`;
  const lines = [...problems];
  if (!isLive) {
    lines.unshift(`No news from the gateway (${store.problem}); trying again. This was ${
      ago(store.now() - store.heardAt)}.`);
  }
  at("banner").hidden = !lines.length;
  morph(at("banner"), h("div", {}, h("ul", {}, lines.slice(0, 8).map((line) => h("li", {}, line)))));
}

const stream = startStream(
  (kind, data) => {
    store.apply(kind, data);
    store.heardAt = store.now();
    draw();
  },
  (status, problem) => {
    store.status = status;
    store.problem = problem;
    draw();
  },
);

at("view").addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.id !== "login") return;
  remember(at("key").value.trim());
  store.status = "connecting";
  store.problem = "";
  stream.unlock();
  draw();
});
requestsHandlers(at("view"), draw);
hover(at("view"), draw);
addEventListener("hashchange", () => {
  draw();
  scrollTo(0, 0);
});
document.addEventListener("visibilitychange", draw);
setInterval(draw, REDRAW_MS);
draw();
