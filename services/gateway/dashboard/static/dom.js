// Elements from values. Text is only ever inserted as text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "path", "line", "polyline", "title"]);

/** h("td", {class: "num"}, "12"): an element; children may be nested lists, null is nothing. */
export function h(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "vars") node.vars = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  if (node.vars) setVars(node, node.vars);
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// Sizes go through the CSSOM: the page's policy refuses style attributes.
function setVars(node, vars) {
  for (const [name, value] of Object.entries(vars)) node.style.setProperty(name, value);
}

/** Make `target`'s children those of `source`, keeping what is equal: focus, scroll, selection. */
export function morph(target, source) {
  const wanted = [...source.childNodes];
  wanted.forEach((node, index) => {
    const old = target.childNodes[index];
    if (!old) target.append(node);
    else if (!isAlike(old, node)) target.replaceChild(node, old);
    else update(old, node);
  });
  while (target.childNodes.length > wanted.length) target.lastChild.remove();
}

function isAlike(old, node) {
  return old.nodeName === node.nodeName && old.id === node.id &&
    (old.nodeType !== Node.ELEMENT_NODE || old.dataset.key === node.dataset.key);
}

function update(old, node) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  if (node.dataset.keep !== undefined) return;
  for (const { name } of [...old.attributes]) {
    if (name !== "style" && !node.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (node.vars) setVars(old, node.vars);
  morph(old, node);
}
