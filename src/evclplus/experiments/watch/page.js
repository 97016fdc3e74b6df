"use strict";
// Asks every two seconds what there is to see, and shows it. Texts are only ever set as texts.

const get = (id) => document.getElementById(id);

function make(tag, name, ...content) {
  const made = document.createElement(tag);
  made.className = name;
  made.append(...content);
  return made;
}

function bar(part) {
  const inner = make("div", "");
  inner.style.width = `${100 * part}%`;
  return make("div", "bar", inner);
}

const CONDITIONS = {
  stopped: "It was stopped; the same command goes on with it.",
  finished: "It has ended.",
  lost: "Its process has ended without a word (killed, or the machine was switched off); the same command goes on with it.",
  idle: "Nothing is running here now.",
};

function words(state) {
  const total = state.total === null ? "" : ` of ${state.total}`;
  const parts = [`${state.finished}${total} finished`];
  if (state.condition === "running") parts.push(`${state.running.length} running`);
  if (state.failed.length) parts.push(`${state.failed.length} failed`);
  if (state.left !== null) parts.push(`about ${state.left} left`);
  return parts.join(" · ");
}

function run(one) {
  const line = make("div", "line", make("b", "", one.title), make("span", "muted", one.since));
  return make("div", "run", line, bar(one.part), make("div", "muted", one.text || "starting"));
}

function results(groups) {
  const row = (tag, cells) => make("tr", "", ...cells.map((cell, i) => make(i < 2 ? "th" : tag, i < 2 ? "text" : "", cell)));
  const metrics = [...new Set(groups.map((one) => one.metric))];
  const head = row("th", ["Benchmark", "Method", "Runs", metrics.length === 1 ? metrics[0] : "Result", "Forgetting"]);
  const rows = groups.map((one) => row("td", [one.benchmark, one.method, one.runs, metrics.length === 1 ? one.average : `${one.metric} ${one.average}`, one.forgetting]));
  const table = make("table", "", make("thead", "", head), make("tbody", "", ...rows));
  return [make("h2", "", "Finished so far"), make("div", "scroll", table)];
}

function show(state) {
  get("words").textContent = words(state);
  document.title = `${words(state)} · evclplus watch`;
  get("since").textContent = state.since ? `for ${state.since}, ${state.workers} at once` : state.folder;
  get("detail").textContent = CONDITIONS[state.condition] || state.command || "";
  get("all").hidden = !state.total;
  if (state.total) get("all").firstChild.style.width = `${100 * Math.min(1, state.finished / state.total)}%`;
  get("running").replaceChildren(...(state.condition === "running" ? state.running.map(run) : []));
  const failed = state.failed.map((one) => make("div", "run", make("b", "bad", one.title), make("div", "", one.error)));
  get("failed").replaceChildren(...(failed.length ? [make("h2", "", "Failed"), ...failed] : []));
  get("results").replaceChildren(...(state.results.length ? results(state.results) : []));
  get("report").hidden = !state.report;
}

async function look() {
  try {
    const answer = await fetch("/state.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
  } catch (error) {
    get("words").textContent = error instanceof TypeError ? "evclplus watch does not answer any more." : error.message;
  }
  setTimeout(look, 2000);
}
look();
