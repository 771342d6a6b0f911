// Elements as values, and a renderer that changes only what differs: focus, scroll position and typed text survive a
// refresh. Text is always set as text, never as HTML.

/**
 * An element to be. Properties: `key` (identity among its siblings), `on...` (listeners), `hook` ({create, update,
 * remove}, each called with the element), `value` and `checked` (set once: what was typed since stays); the rest are
 * attributes, of which true is the empty one and false, null and undefined are none.
 */
export function h(tag, props, ...children) {
  return { tag, props: props || {}, key: props?.key, children };
}

/** Makes the children of `parent` what is given. */
export function render(parent, ...vnodes) {
  const wanted = [...flat(vnodes)];
  const keys = new Set(wanted.map((vnode) => vnode.key));
  const keyed = new Map();
  for (const node of [...parent.childNodes]) {
    if (node.key === undefined) continue;
    if (keys.has(node.key)) keyed.set(node.key, node);
    else drop(node);
  }
  let cursor = parent.firstChild;
  for (const vnode of wanted) {
    const known = vnode.key === undefined ? cursor : keyed.get(vnode.key);
    const node = known && fits(known, vnode) ? known : create(vnode);
    if (node === known) update(node, vnode);
    if (node === cursor) {
      cursor = cursor.nextSibling;
    } else if (cursor && vnode.key === undefined && cursor.key === undefined) {
      parent.insertBefore(node, cursor);
      cursor = dropped(cursor);
    } else {
      parent.insertBefore(node, cursor);
    }
  }
  while (cursor) cursor = dropped(cursor);
}

/** Removes a node; returns the one behind it. */
function dropped(node) {
  const next = node.nextSibling;
  drop(node);
  return next;
}

function drop(node) {
  removed(node);
  node.remove();
}

function* flat(vnodes) {
  for (const each of vnodes) {
    if (Array.isArray(each)) yield* flat(each);
    else if (each !== null && each !== undefined && each !== false && each !== "") yield typeof each === "object" ? each : { text: String(each) };
  }
}

function fits(node, vnode) {
  if (vnode.text !== undefined) return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === vnode.tag && node.key === vnode.key;
}

function create(vnode) {
  if (vnode.text !== undefined) return document.createTextNode(vnode.text);
  const node = document.createElement(vnode.tag);
  node.key = vnode.key;
  node.listeners = {};
  update(node, vnode);
  if (vnode.props.value !== undefined) node.value = vnode.props.value;
  if (vnode.props.checked !== undefined) node.checked = vnode.props.checked;
  return node;
}

function update(node, vnode) {
  if (vnode.text !== undefined) {
    if (node.data !== vnode.text) node.data = vnode.text;
    return;
  }
  const { props } = vnode;
  const isNew = node.hook === undefined;
  node.hook = props.hook || null;
  for (const name of node.getAttributeNames()) {
    if (name !== "open" && (!(name in props) || absent(props[name]))) node.removeAttribute(name); // who opened it closes it
  }
  for (const [name, value] of Object.entries(props)) {
    if (name === "key" || name === "hook" || name === "value" || name === "checked") continue;
    if (name.startsWith("on")) {
      listen(node, name.slice(2), value);
    } else if (!absent(value)) {
      const text = value === true ? "" : String(value);
      if (node.getAttribute(name) !== text) node.setAttribute(name, text);
    }
  }
  if (node.hook) {
    if (isNew) node.hook.create?.(node);
    node.hook.update?.(node);
    if (node.hook.owns) return;
  }
  render(node, ...vnode.children);
}

function absent(value) {
  return value === false || value === null || value === undefined;
}

/** One listener per event for the element's life, which calls the newest function. */
function listen(node, event, call) {
  if (!(event in node.listeners)) node.addEventListener(event, (e) => node.listeners[event]?.(e));
  node.listeners[event] = call;
}

function removed(node) {
  node.hook?.remove?.(node);
  for (const child of node.childNodes) removed(child);
}
