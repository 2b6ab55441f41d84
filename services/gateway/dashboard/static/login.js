// The admin key, kept for this tab alone.

import { h } from "./dom.js";

const KEY = "moonpool-admin-key";

export const key = () => sessionStorage.getItem(KEY) ?? "";
export const remember = (value) => sessionStorage.setItem(KEY, value);
export const forget = () => sessionStorage.removeItem(KEY);

export function loginView(problem) {
  return h("form", { class: "card login", id: "login" },
    h("h2", {}, "This cluster has API keys"),
    h("p", {}, "The dashboard shows the requests of all tenants, so it needs the admin key: the ",
      h("code", {}, "MOONPOOL_ADMIN_KEY"), " of the gateway. It stays in this tab."),
    h("label", { for: "key" }, "Admin key"),
    h("div", { class: "line" },
      h("input", { id: "key", type: "password", autocomplete: "off", required: true, "data-keep": "" }),
      h("button", { type: "submit" }, "Show the dashboard")),
    problem ? h("p", { class: "bad", role: "alert" }, problem) : null);
}
