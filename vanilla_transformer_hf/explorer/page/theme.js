// The theme: the system's, unless another was chosen, which the browser remembers.

const NAME = "explorer-theme";

/** A page in a closed frame, and some browsers, have no storage. */
function stored() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}

function store(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // it lasts as long as the page
  }
}

export function currentTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  return document.documentElement.dataset.theme ?? system;
}

export function chooseTheme(name) {
  document.documentElement.dataset.theme = name;
  store(name);
}

/** Show the theme that was chosen earlier. */
export function restoreTheme() {
  const name = stored();
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
}
