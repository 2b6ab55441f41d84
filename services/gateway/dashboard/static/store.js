// What the feed told so far, and the clock that its times are by.

const MAX_REQUESTS = 1000;

export const store = {
  sections: null,
  requests: [], // the newest last
  byKey: new Map(),
  status: "connecting", // connecting, live, lost, locked
  problem: "",
  offset: 0,

  now() {
    return performance.now() / 1000 + this.offset;
  },

  apply(kind, data) {
    this.offset = data.now_s - performance.now() / 1000;
    if (kind === "snapshot") {
      this.sections = {};
      this.requests = [];
      this.byKey.clear();
    }
    const { requests, now_s: _now, ...sections } = data;
    Object.assign(this.sections, sections);
    for (const row of requests) {
      if (this.byKey.has(row.key)) continue;
      this.byKey.set(row.key, row);
      this.requests.push(row);
    }
    for (const old of this.requests.splice(0, Math.max(0, this.requests.length - MAX_REQUESTS))) {
      this.byKey.delete(old.key);
    }
    this.status = "live";
    this.problem = "";
  },
};
