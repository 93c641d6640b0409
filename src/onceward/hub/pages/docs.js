// API reference: one page that renders the hub's OpenAPI document. It loads nothing from other hosts and works offline.
const make = (name, attributes, ...children) => {
  const node = Object.assign(document.createElement(name), attributes);
  node.append(...children);
  return node;
};

let schemas = {};
const resolved = (schema) => (schema && schema.$ref ? schemas[schema.$ref.split("/").pop()] || {} : schema || {});

// Example JSON for a schema, with types in place of values.
const sketch = (schema, depth = 0) => {
  schema = resolved(schema);
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return schema.const;
  const several = schema.anyOf || schema.oneOf;
  if (several) {
    const shapes = several.map((one) => sketch(one, depth + 1));
    return shapes.every((one) => typeof one === "string") ? shapes.join(" | ") : shapes[0];
  }
  if (schema.type === "array") return [sketch(schema.items, depth + 1)];
  if (schema.properties && depth < 6) {
    return Object.fromEntries(Object.entries(schema.properties).map(([name, one]) => [name, sketch(one, depth + 1)]));
  }
  return schema.type || "any";
};

const content = (described) => {
  const [type, body] = Object.entries((described && described.content) || {})[0] || [];
  if (!type) return [];
  return [
    make("div", { className: "quiet", textContent: type }),
    make("pre", { textContent: JSON.stringify(sketch(body.schema), null, 2) }),
  ];
};

const parameters = (operation) => {
  const listed = operation.parameters || [];
  if (!listed.length) return [];
  const rows = listed.map((one) =>
    make("tr", {},
      make("td", {}, make("code", { textContent: one.name })),
      make("td", { className: "quiet", textContent: `${one.in}${one.required ? ", required" : ""}` }),
      make("td", { textContent: one.description || "" })));
  return [make("h4", { textContent: "Parameters" }), make("table", {}, ...rows)];
};

const route = (path, verb, operation) => {
  const responses = Object.entries(operation.responses).map(([status, described]) =>
    make("details", {},
      make("summary", {}, make("code", { textContent: status }), " ", described.description || ""),
      ...content(described)));
  const body = content(operation.requestBody);
  return make("details", { id: operation.operationId },
    make("summary", {},
      make("span", { className: `verb ${verb}`, textContent: verb }), " ", make("code", { textContent: path }), " ",
      make("span", { className: "quiet", textContent: operation.summary || "" })),
    make("p", { textContent: operation.description || "" }),
    ...parameters(operation),
    ...(body.length ? [make("h4", { textContent: "Request body" }), ...body] : []),
    make("h4", { textContent: "Responses" }), ...responses);
};

const show = (api) => {
  schemas = (api.components && api.components.schemas) || {};
  document.getElementById("title").textContent = `${api.info.title} ${api.info.version}`;
  document.getElementById("about").textContent = (api.info.description || "").trim();
  const groups = new Map();
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const group = (operation.tags || ["hub"])[0];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(route(path, verb.toUpperCase(), operation));
    }
  }
  for (const [group, routes] of groups) {
    document.getElementById("routes").append(make("h2", { textContent: group }), ...routes);
  }
};

fetch("openapi.json")
  .then((response) => response.json())
  .then(show)
  .catch((error) => { document.getElementById("about").textContent = `The OpenAPI document could not be loaded: ${error}`; });
