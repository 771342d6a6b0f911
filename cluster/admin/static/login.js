// The login: a form in place of what may not be shown, the user's name at the top, and the logout.

import { change } from "./api.js";
import { h } from "./dom.js";
import { inside, panel, problem } from "./ui.js";

const state = { error: null, busy: false };

/** The form. `again`: called after the login, and to draw again. */
export function loginForm(refusal, { done, draw }) {
  async function submit(event) {
    event.preventDefault();
    const form = event.currentTarget;
    if (state.busy) return;
    Object.assign(state, { busy: true, error: null });
    draw();
    try {
      await change("POST", "v1/session", { user: form.elements.user.value, secret: form.elements.secret.value });
      form.reset();
      Object.assign(state, { busy: false });
      done();
    } catch (error) {
      form.elements.secret.value = "";
      Object.assign(state, { busy: false, error });
      draw();
      form.elements.secret.focus();
    }
  }
  return [
    h("div", { class: "head" }, h("h1", null, "Log in")),
    panel("Who are you?", { note: refusal.message }, inside(
      h("form", { class: "login", onsubmit: submit },
        field("User", { name: "user", type: "text", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" }),
        field("Secret", { name: "secret", type: "password", autocomplete: "current-password", required: true }),
        h("button", { type: "submit", class: "primary", disabled: state.busy }, state.busy ? "Logging in…" : "Log in")),
      state.error && problem(state.error))),
  ];
}

function field(label, props) {
  return h("label", null, h("span", null, label), h("input", props));
}

/** The user who is logged in, with a way out; nothing if nobody is. */
export function userCard(session, done) {
  if (!session?.user) return null;
  return [
    h("span", { class: "user", "data-field": "user", title: session.ends ? `until ${session.ends}` : null }, session.user),
    h("button", { type: "button", class: "small", onclick: () => change("DELETE", "v1/session").then(done, done) }, "Log out"),
  ];
}
