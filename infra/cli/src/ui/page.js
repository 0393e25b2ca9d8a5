// The page reads from the server that `kubectl driftless ui` is, and sends nothing else. Names, messages and logs come from the cluster: they
// become text nodes, never HTML. The Content-Security-Policy refuses anything else.
"use strict";

// The key is in a cookie now: the address bar and the history need not show it.
history.replaceState(null, "", location.pathname + location.hash);

const STEP = 500;
const main = document.getElementById("main");
// A number that grows with each view, so that an answer for an earlier one is dropped.
let view = 0;
let fleet = { rows: [], namespace: null };
const choice = { text: "", filter: "all", shown: STEP };

function el(tag, properties, ...children) {
  const { class: classes, ...attributes } = properties || {};
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

async function read(path, parameters) {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`);
  if (response.status === 403) throw new Error("this page has lost its key; open the URL that kubectl driftless ui printed");
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function span(milliseconds) {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  const two = (large, name, rest, small) => (rest ? `${large}${name}${rest}${small}` : `${large}${name}`);
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return two(Math.floor(seconds / 60), "m", seconds % 60, "s");
  if (seconds < 86400) return two(Math.floor(seconds / 3600), "h", Math.floor(seconds / 60) % 60, "m");
  return two(Math.floor(seconds / 86400), "d", Math.floor(seconds / 3600) % 24, "h");
}

const ago = (time) => (time ? `${span(Date.now() - Date.parse(time))} ago` : "");
const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

function fail(error) {
  const box = document.getElementById("error");
  // Offline: the command has ended.
  box.textContent = error instanceof TypeError ? "the server does not answer; is kubectl driftless ui still running?" : error.message;
  box.hidden = false;
}

// Calls `load` now and again after each answer, until another view is shown. A hidden page waits. `pause` is in milliseconds.
function repeat(pause, load) {
  const mine = view;
  const again = async () => {
    if (mine !== view) return;
    let next = pause;
    const start = performance.now();
    try {
      if (!document.hidden) {
        const goesOn = await load(() => mine === view);
        if (mine !== view) return;
        document.getElementById("error").hidden = true;
        document.getElementById("freshness").textContent = `read at ${new Date().toLocaleTimeString()}`;
        if (goesOn === false) return;
      }
    } catch (error) {
      if (mine !== view) return;
      fail(error);
    }
    // A list that takes long is not read all the time.
    next = Math.max(pause, 10 * (performance.now() - start));
    setTimeout(again, next);
  };
  again();
}

// The fleet

const FILTERS = {
  all: ["All", () => true],
  bad: ["Stalled", (row) => row.tone === "bad"],
  busy: ["In progress", (row) => row.tone === "busy"],
  drift: ["Drifted", (row) => row.drift === "yes"],
  suspended: ["Suspended", (row) => row.suspended],
  good: ["Ready", (row) => row.tone === "good"],
};

function showFleet() {
  document.title = "Stacks · Driftless";
  const counts = el("p", { role: "status", class: "faint" });
  const list = el("ol", { class: "fleet" });
  const more = el("button", { type: "button", hidden: true, onclick: () => ((choice.shown += STEP), fill(list.children.length)) });
  const buttons = Object.entries(FILTERS).map(([name, [title]]) =>
    el("button", { type: "button", "data-filter": name, onclick: () => ((choice.filter = name), (choice.shown = STEP), fill()) }, title),
  );
  const search = el("input", {
    type: "search", placeholder: "Name, namespace, state or commit  ( / )", "aria-label": "Search", autocomplete: "off",
    oninput: () => ((choice.text = search.value), (choice.shown = STEP), fill()),
  });
  search.value = choice.text;

  function fill(focus) {
    const words = choice.text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = fleet.rows.filter((row) => words.every((word) => row.key.includes(word)));
    for (const button of buttons) {
      const [title, test] = FILTERS[button.dataset.filter];
      button.textContent = `${title} ${found.filter(test).length}`;
      button.setAttribute("aria-pressed", button.dataset.filter === choice.filter);
    }
    const rows = found.filter(FILTERS[choice.filter][1]);
    const active = document.activeElement?.dataset?.key;
    const shown = rows.slice(0, choice.shown).map(line);
    list.replaceChildren(...shown);
    if (active) list.querySelector(`[data-key="${CSS.escape(active)}"]`)?.focus();
    if (focus !== undefined) list.children[focus]?.firstChild.focus();
    const left = rows.length - shown.length;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(STEP, left)} more of ${left}`;
    counts.textContent = rows.length === fleet.rows.length ? `${rows.length} Stacks` : `${rows.length} of ${fleet.rows.length} Stacks`;
  }

  function line(row) {
    const cell = (label, text, classes) => el("span", { class: classes }, el("span", { class: "label" }, `${label} `), text || "-");
    const name = fleet.namespace ? row.name : `${row.namespace}/${row.name}`;
    return el("li", {}, el("a", { class: "row", href: link(row.namespace, row.name), "data-key": `${row.namespace}/${row.name}` },
      el("span", { class: "name" }, name), cell("", row.state, row.tone), cell("commit", row.commit, "mono"),
      cell("drift", row.drift, row.drift === "yes" ? "bad" : "faint"), cell("age", row.age, "faint")));
  }

  const head = el("div", { class: "row head", "aria-hidden": "true" },
    ...["Stack", "State", "Last commit", "Drift", "Age"].map((title) => el("span", {}, title)));
  main.replaceChildren(el("h2", {}, "Stacks"), el("div", { class: "tools" }, search, ...buttons), counts, head, list, more);
  fill();
  repeat(5000, async (current) => {
    const answer = await read("api/stacks");
    if (!current()) return;
    fleet = answer;
    for (const row of fleet.rows) row.key = `${row.namespace}/${row.name} ${row.state} ${row.commit}`.toLowerCase();
    document.getElementById("place").textContent = fleet.namespace ? `namespace ${fleet.namespace}` : "all namespaces";
    fill();
  });
}

// One Stack

function showStack(namespace, name, chosen) {
  document.title = `${name} · Driftless`;
  document.getElementById("place").textContent = `namespace ${namespace}`;
  const parts = {};
  for (const part of ["why", "runs", "run", "diff", "graph"]) parts[part] = el("section", {});
  main.replaceChildren(el("p", {}, el("a", { href: "#/" }, "All Stacks")), parts.why, parts.runs);
  let newest;
  let isPlaced = false;
  let followed;
  repeat(3000, async (current) => {
    const stack = await read("api/stack", { namespace, name });
    if (!current()) return;
    // The Update of an old run is deleted, and its log with it.
    const shown = stack.runs.find((run) => run.name === (chosen || stack.current)) || stack.runs[0];
    if (!isPlaced) {
      isPlaced = true;
      // A run that succeeded and its log are long, and say less than what waits for an approval or has drifted.
      const isFirst = chosen || (shown && (!shown.ended || shown.tone === "bad"));
      main.append(...(isFirst ? [parts.run, parts.diff, parts.graph] : [parts.diff, parts.graph, parts.run]));
    }
    renderWhy(parts.why, namespace, name, stack);
    const run = chosen || shown?.name;
    renderRuns(parts.runs, namespace, name, stack, run);
    if (run && run !== followed) {
      followed = run;
      follow(parts.run, namespace, run, () => followed === run);
      if (chosen) parts.run.scrollIntoView();
    }
    // What a run changes is recorded with its end.
    const last = JSON.stringify(stack.runs.map((run) => [run.name, run.ended]));
    if (last !== newest) {
      newest = last;
      load(parts.diff, "Differences", () => read("api/diff", { namespace, name }), (answer) => renderDiff(answer, namespace, name), current);
      load(parts.graph, "Dependencies", () => read("api/graph", { namespace, name }), (graph) => renderGraph(graph, namespace, name), current);
    }
  });
}

async function load(section, title, get, render, current) {
  try {
    const answer = await get();
    if (current()) section.replaceChildren(el("h3", {}, title), ...[render(answer)].flat());
  } catch (error) {
    if (current()) section.replaceChildren(el("h3", {}, title), el("p", { class: "bad" }, error.message));
  }
}

function renderWhy(section, namespace, name, stack) {
  const why = stack.explanation;
  const lines = [el("h2", {}, `${name} `, el("span", { class: stack.tone }, stack.state))];
  if (why) {
    if (why.message) lines.push(el("p", {}, why.message));
    if (why.meaning) lines.push(el("p", { class: "faint" }, why.meaning));
    if (why.remedy) lines.push(el("p", {}, el("strong", {}, "What to do: "), why.remedy));
    const at = why.next.at ? `${new Date(why.next.at).toLocaleString()} (${relative(why.next.at)}): ` : "";
    lines.push(el("dl", {},
      el("dt", {}, "next reconciliation"), el("dd", {}, `${at}${why.next.why}`),
      el("dt", {}, "a reconciliation now"), el("dd", {}, why.now.join("; ")),
      ...why.facts.flatMap((fact) => [el("dt", {}, fact.name), el("dd", {}, fact.value)])));
  } else {
    if (stack.message) lines.push(el("p", {}, stack.message));
    lines.push(el("p", { class: "faint" }, `no explanation: ${stack.unexplained}`));
  }
  lines.push(el("p", {}, el("code", {}, `kubectl driftless explain ${name} -n ${namespace}`)));
  update(section, el("div", { class: "card" }, lines));
}

const relative = (time) => {
  const left = Date.parse(time) - Date.now();
  return left > 0 ? `in ${span(left)}` : `${span(-left)} ago`;
};

// Replaces the content only if it differs, so that a selection and the focus stay.
function update(section, ...content) {
  const next = el("section", {}, ...content);
  if (section.isEqualNode(next)) return;
  const active = section.contains(document.activeElement) && document.activeElement.getAttribute("href");
  section.replaceChildren(...next.childNodes);
  if (active) section.querySelector(`[href="${CSS.escape(active)}"]`)?.focus();
}

function renderRuns(section, namespace, name, stack, chosen) {
  const runs = stack.runs.slice(0, 50);
  const times = runs.map((run) => {
    const started = run.started ? Date.parse(run.started) : null;
    const ended = Date.parse(run.ended || stack.now);
    const created = Math.min(Date.parse(run.created || run.started), started || ended);
    return { waited: (started || ended) - created, ran: started ? Math.max(0, ended - started) : 0 };
  });
  const longest = Math.max(1000, ...times.map(({ waited, ran }) => waited + ran));
  const line = (run, index) => {
    const { waited, ran } = times[index];
    const piece = (kind, part) => {
      if (part <= 0) return null;
      const bar = el("i", { class: kind });
      // A style attribute would need a weaker policy; the property does not.
      bar.style.width = `${(100 * part) / longest}%`;
      return bar;
    };
    const text = `waited ${span(waited)}${run.started ? `, ran ${span(ran)}` : ""}`;
    return el("li", {}, el("a", { class: "run", href: link(namespace, name, run.name), "aria-current": run.name === chosen ? "true" : null },
      el("span", { class: "name" }, run.name), el("span", {}, run.operation),
      el("span", { class: run.tone }, run.summary && run.ended ? `${run.state} ${run.summary}` : run.state),
      el("span", { class: "faint" }, ago(run.ended || run.started || run.created)),
      el("span", { class: "bar", role: "img", "aria-label": text, title: text }, piece("wait", waited), piece(run.tone, ran))));
  };
  const list = runs.length
    ? [el("ol", { class: "runs" }, runs.map(line)),
       el("p", { class: "faint" }, "The bars have one scale:", el("i", { class: "key wait" }), "from its creation to its start",
         el("i", { class: "key good" }), "the run")]
    : [el("p", { class: "faint" }, "No Update of this Stack is left. An Update is deleted 24 hours after its run by default.")];
  update(section, el("h3", {}, "History"), ...list);
}

// Follows a run until it is complete: its state, its resources and its log.
function follow(section, namespace, name, chosen) {
  const log = el("pre", { class: "log", tabindex: "0", "aria-label": `Log of ${name}` });
  const state = el("div", {});
  const timeline = el("div", {});
  const resources = el("div", {});
  const note = el("p", { class: "faint", role: "status" });
  let after = "";
  let requested = "";
  section.replaceChildren(el("h3", {}, `Run ${name}`), state, timeline, resources, note, log);
  repeat(2000, async (current) => {
    if (!chosen()) return false;
    const answer = await read("api/update", { namespace, name, after, requested });
    if (!current() || !chosen()) return false;
    if (answer.deleted) {
      section.replaceChildren(el("h3", {}, `Run ${name}`), el("p", { class: "faint" }, "Its Update was deleted with its log."));
      return false;
    }
    renderRun(state, answer.run);
    renderTimeline(timeline, answer.run);
    renderResources(resources, answer);
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 20;
    note.textContent = answer.note || "";
    if (!after) log.replaceChildren(answer.log || answer.absent || "");
    else log.append(answer.log);
    // The whole log follows the part that is shown until its new link is there.
    requested = answer.requested || "";
    after = requested ? "" : answer.last || after;
    if (atEnd) log.scrollTop = log.scrollHeight;
    return Boolean(requested) || !answer.complete;
  });
}

function renderRun(section, run) {
  const progress = run.ended ? null : run.progress;
  const rows = [];
  const row = (name, value) => value && rows.push(el("dt", {}, name), el("dd", {}, value));
  row("operation", run.operation);
  row("state", el("span", { class: run.tone }, run.state));
  row("message", run.message);
  row("revision", run.revision);
  row("created", run.created && new Date(run.created).toLocaleString());
  row("waited", run.started && run.created && span(Date.parse(run.started) - Date.parse(run.created)));
  row("ran", run.started && span((run.ended ? Date.parse(run.ended) : Date.now()) - Date.parse(run.started)));
  row("changes", run.summary);
  if (progress) {
    const steps = `${progress.done} of ${progress.planned} resource steps${progress.failed ? `, ${progress.failed} failed` : ""}`;
    rows.push(el("dt", {}, "progress"), el("dd", {}, el("progress", { max: Math.max(1, progress.planned), value: progress.done, "aria-label": steps }), steps));
    row("phase", progress.phase);
    row("current step", progress.current);
  }
  section.replaceChildren(el("dl", { class: "card" }, rows));
}

const SIGNS = { create: ["+", "good"], update: ["~", "busy"], replace: ["±", "bad"], delete: ["-", "bad"], import: ["=", "good"] };

function resourceLine(resource) {
  const [sign, tone] = SIGNS[resource.change] || ["~", "busy"];
  const failed = resource.failed && el("div", { class: "bad" }, `failed${resource.failed[1] ? ` at ${new Date(resource.failed[1]).toLocaleTimeString()}` : ""}: ${resource.failed[0]}`);
  const detail = (resource.properties || []).join("\n") || resource.detail;
  return el("li", {}, el("span", { class: `op ${resource.failed ? "bad" : tone}` }, `${resource.failed ? "!" : sign} ${resource.change || "failed"}`),
    el("span", { class: "mono" }, resource.urn), failed, detail ? el("pre", { class: "faint" }, detail) : null);
}

function renderResources(section, answer) {
  const found = answer.resources;
  if (!found.length) return update(section);
  const running = answer.run.progress?.current;
  update(section, el("h3", {}, "Resources"),
    el("p", { class: "faint" }, "In the order of the log."),
    running && !answer.complete ? el("p", { class: "busy" }, `now: ${running}`) : null,
    el("ol", { class: "plain resources" }, found.map(resourceLine)));
}

// The steps on the time of the run. Pulumi's events have whole seconds.
function renderTimeline(section, run) {
  if (!run.steps.length) return update(section);
  const seconds = (duration) => [...duration.matchAll(/(\d+)([hms])/g)].reduce((sum, [, n, unit]) => sum + n * { h: 3600, m: 60, s: 1 }[unit], 0);
  const steps = run.steps.map((step) => ({ ...step, at: Date.parse(step.startTime), took: seconds(step.duration) * 1000 }));
  const first = Math.min(...steps.map((step) => step.at));
  const whole = Math.max(1000, ...steps.map((step) => step.at + step.took - first));
  const line = (step) => {
    const [, tone] = SIGNS[step.operation] || ["~", "busy"];
    const bar = el("i", { class: step.failed ? "bad" : tone });
    bar.style.marginLeft = `${(100 * (step.at - first)) / whole}%`;
    bar.style.width = `${(100 * step.took) / whole}%`;
    const text = `${step.operation} ${step.failed ? "failed after" : "took"} ${step.duration}`;
    return el("li", {}, el("span", { class: "mono", title: step.urn }, step.urn.split("::").slice(-2).join(" ")),
      el("span", { class: step.failed ? "bad" : null }, text),
      el("span", { class: "bar", role: "img", "aria-label": `${text}, started at ${new Date(step.at).toLocaleTimeString()}` }, bar));
  };
  update(section, el("h3", {}, "Timeline"), el("ol", { class: "plain timeline" }, steps.map(line)),
    el("p", { class: "faint" }, "The bars have one scale, from the first step to the end of the last."));
}

function renderDiff({ diff, notes }, namespace, name) {
  const said = notes.map((note) => el("p", { class: "faint" }, note));
  if (!diff.runs.length) return [...said, el("p", { class: "faint" }, "No preview, update or drift check has ended.")];
  const titles = { plan: "The plan", preview: "The last preview", update: "The last update", driftCheck: "The last drift check" };
  const unnamed = (run) => run.unnamed && el("p", { class: "faint" }, `${run.unnamed} more, which ${run.kind === "plan" ? "its status" : "the log"} does not name`);
  const commands = (run) => run.hash && ["approve", "reject"].map((verb) =>
    el("p", {}, `To ${verb} exactly this plan: `, el("code", {}, `kubectl driftless ${verb} ${name} -n ${namespace} --plan ${run.hash}`)));
  return [...said, ...diff.runs.map((run) => el("div", { class: "card" },
    el("p", {}, el("strong", {}, titles[run.kind]), `, ${ago(run.ended)}: `, el("span", { class: run.differs === false ? null : "bad" }, run.summary)),
    commands(run) || null,
    run.resources.length ? el("ol", { class: "plain resources" }, run.resources.map(resourceLine)) : null, unnamed(run) || null))];
}

function renderGraph(graph, namespace, name) {
  if (graph.nodes.length < 2) return el("p", { class: "faint" }, "It requires no Stack, and no Stack requires it.");
  const [width, height, gapX, gapY] = [190, 46, 60, 16];
  const levels = [];
  for (const node of graph.nodes) (levels[node.level] ||= []).push(node);
  const columns = levels.filter(Boolean);
  const place = new Map();
  columns.forEach((nodes, column) => nodes.forEach((node, row) => place.set(node.name, [10 + column * (width + gapX), 10 + row * (height + gapY)])));
  const total = [columns.length * (width + gapX) - gapX + 20, Math.max(...columns.map((nodes) => nodes.length)) * (height + gapY) + gapY + 10];
  const cut = (text) => (text.length > 24 ? `${text.slice(0, 23)}…` : text);
  const picture = svg("svg", { width: total[0], height: total[1], role: "img", "aria-label": `Dependencies of ${name}; the list below has the same` });
  for (const node of graph.nodes) {
    const [x, y] = place.get(node.name);
    for (const required of node.requires) {
      const [fromX, fromY] = place.get(required);
      const [startX, startY, endY] = [fromX + width, fromY + height / 2, y + height / 2];
      // A line past another column would be behind its boxes.
      const below = Math.max(fromY, y) + height + 2 * gapY;
      const isNext = startX + gapX >= x;
      picture.append(svg("path", { d: isNext
        ? `M${startX} ${startY} C${startX + gapX / 2} ${startY} ${x - gapX / 2} ${endY} ${x} ${endY}`
        : `M${fromX + width / 2} ${fromY + height} C${startX} ${below} ${x} ${below} ${x + width / 2} ${y + height}` }));
    }
  }
  for (const node of graph.nodes) {
    const [x, y] = place.get(node.name);
    picture.append(svg("g", { class: node.name === name ? "self" : "" },
      svg("rect", { x, y, width, height, rx: 6, class: node.tone }),
      svg("text", { x: x + 10, y: y + 19 }, cut(node.name)), svg("text", { x: x + 10, y: y + 36, class: "state" }, cut(node.state))));
  }
  const line = (node) => el("li", {}, node.name === name ? el("strong", {}, node.name) : el("a", { href: link(namespace, node.name) }, node.name), " ",
    el("span", { class: node.tone }, node.state), node.requires.length ? ` requires ${node.requires.join(", ")}` : "");
  return [el("div", { class: "graph", tabindex: "0" }, picture), el("ul", { class: "plain" }, graph.nodes.map(line)),
    graph.leftOut ? el("p", { class: "faint" }, `${graph.leftOut} more Stacks are not shown`) : null].filter(Boolean);
}

// Addresses and keys

function route(event) {
  view += 1;
  document.getElementById("error").hidden = true;
  const [namespace, name, run] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (namespace && name) showStack(namespace, name, run);
  else showFleet();
  // The first view leaves the focus where the browser has it.
  if (event) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const search = main.querySelector("input");
  if (event.key === "/" && search && document.activeElement !== search) {
    event.preventDefault();
    search.focus();
  }
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const rows = [...main.querySelectorAll("a.row, a.run")];
  const index = rows.indexOf(document.activeElement);
  if (step && rows.length && (index >= 0 || document.activeElement === search)) {
    event.preventDefault();
    (index + step < 0 ? search || rows[0] : rows[Math.min(rows.length - 1, index + step)])?.focus();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", route);
route();
