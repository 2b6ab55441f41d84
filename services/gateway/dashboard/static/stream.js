// The live feed: server-sent events by fetch, so that the key goes in a header. Closed while the
// page is hidden, opened anew with growing pauses when it breaks.

import { key, forget } from "./login.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10000;
const SILENCE_MS = 8000;

export function startStream(onEvent, onStatus) {
  let abort = null;
  let timer = 0;
  let silence = 0;
  let pause = FIRST_PAUSE_MS;
  let isLocked = false;

  const later = (problem) => {
    onStatus("lost", problem);
    clearTimeout(timer);
    timer = setTimeout(open, pause);
    pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
  };
  const listen = () => {
    clearTimeout(silence);
    silence = setTimeout(() => abort?.abort("silent"), SILENCE_MS);
  };
  const close = () => {
    clearTimeout(timer);
    clearTimeout(silence);
    abort?.abort("closed");
    abort = null;
  };

  async function open() {
    if (document.hidden || isLocked) return;
    const own = (abort = new AbortController());
    try {
      listen();
      const headers = key() ? { authorization: `Bearer ${key()}` } : {};
      const response = await fetch("events", { headers, signal: own.signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403) {
        clearTimeout(silence);
        isLocked = true;
        const refused = Boolean(key());
        forget();
        onStatus("locked", refused ? "This key is not the admin key." : "");
        return;
      }
      if (!response.ok) throw new Error(await messageOf(response));
      for await (const [kind, data] of eventsOf(response.body)) {
        listen();
        pause = FIRST_PAUSE_MS;
        onEvent(kind, data);
      }
      throw new Error("the gateway ended the feed");
    } catch (error) {
      clearTimeout(silence);
      if (own.signal.aborted && own.signal.reason === "closed") return;
      later(own.signal.aborted ? "the gateway is silent" : String(error.message ?? error));
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  open();
  return {
    unlock() {
      isLocked = false;
      open();
    },
  };
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the gateway answers ${response.status}`;
  }
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => {
        const at = line.indexOf(": ");
        return [line.slice(0, at), line.slice(at + 2)];
      }));
      if (fields.data) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}
