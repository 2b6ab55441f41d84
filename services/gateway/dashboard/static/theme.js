// Light, dark or as the system has it; set before anything is painted.
(() => {
  const KEY = "moonpool-theme";
  const CHOICES = ["system", "light", "dark"];
  const stored = localStorage.getItem(KEY);
  let choice = CHOICES.includes(stored) ? stored : "system";

  const apply = () => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
  };
  const label = () => {
    document.getElementById("choice").textContent = choice;
  };
  apply();
  addEventListener("DOMContentLoaded", () => {
    label();
    document.getElementById("theme").addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      localStorage.setItem(KEY, choice);
      apply();
      label();
    });
  });
})();
