// One tab stop for many controls: Tab goes to one of them, arrow keys to those beside it on screen.

const AWAY = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const FIRST = '[aria-pressed="true"], .chosen, .best';

/** How far an item lies in a direction: along it, and three times what it lies beside it. */
function distance(from, to, [right, down]) {
  const x = (to.left + to.right - from.left - from.right) / 2;
  const y = (to.top + to.bottom - from.top - from.bottom) / 2;
  const along = right * x + down * y;
  return along > 1 ? along + 3 * Math.abs(down * x + right * y) : Infinity;
}

function neighbour(items, from, direction) {
  const box = from.getBoundingClientRect();
  let best = null;
  let least = Infinity;
  for (const item of items) {
    const away = distance(box, item.getBoundingClientRect(), direction);
    if (away < least) [best, least] = [item, away];
  }
  return best;
}

/** Give a container whose controls `selector` finds a single tab stop. */
export function roving(container, selector = "button") {
  const items = [...container.querySelectorAll(selector)].filter((item) => !item.disabled);
  let stop = items.find((item) => item.matches(FIRST)) ?? items[0];
  for (const item of items) item.setAttribute("tabindex", item === stop ? 0 : -1);
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (!items.includes(item)) return;
    stop.setAttribute("tabindex", -1);
    stop = item;
    stop.setAttribute("tabindex", 0);
  });
  container.addEventListener("keydown", (event) => {
    if (!items.includes(event.target) || event.altKey || event.ctrlKey || event.metaKey) return;
    const ends = { Home: items[0], End: items.at(-1) };
    const isMove = event.key in AWAY;
    if (!isMove && !(event.key in ends)) return;
    event.preventDefault();
    (isMove ? neighbour(items, event.target, AWAY[event.key]) : ends[event.key])?.focus();
  });
  return container;
}
