"""JupyterLab on loopback in a real browser (Debian's Chromium, driven by Playwright).

`python tests/jupyter_browser.py OUT.png` draws the README's picture of the panel.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
LIMIT_S = 300


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    if not Path(CHROMIUM).exists():
        return f"{CHROMIUM} is missing: apt-get install chromium"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is missing: uv sync --group browser-test"
    return None


@contextmanager
def jupyter_lab(root: Path) -> Iterator[str]:
    """Serve `root`; yields the address with the token, to which a path is added: `{address}/doc/tree/x.ipynb`."""
    with tempfile.TemporaryDirectory(prefix="les-jupyter-") as scratch:
        home = Path(scratch)
        for name, values in SETTINGS.items():
            path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        folders = {
            "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
        }  # fmt: skip
        token = secrets.token_hex(16)
        environment = os.environ | {name: str(home / folder) for name, folder in folders.items()}
        arguments = ["--no-browser", "--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={root}", "--allow-root"]
        with open(home / "log.txt", "wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *arguments],
                env=environment | {"JUPYTER_TOKEN": token},
                cwd=root,
                stdout=log,
                stderr=log,
            )
        try:
            port = _port(server, home / "runtime", home / "log.txt")
            yield f"http://127.0.0.1:{port}/doc/tree/{{path}}?token={token}"
        finally:
            server.terminate()  # ends its kernels too
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _port(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> int:
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        if server.poll() is not None:
            break
        for path in runtime.glob("jpserver-*.json"):
            try:
                return int(json.loads(path.read_text())["port"])
            except (ValueError, KeyError):  # still being written
                pass
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def browser_page(width: int = 1320, height: int = 1250) -> Iterator[Page]:
    """An empty page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(1000 * LIMIT_S)
        yield page
        browser.close()


def run_all(page: Page, address: str, notebook: str) -> None:
    """Open a notebook and run its cells; returns when the last has run."""
    page.goto(address.format(path=notebook))
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_selector("text=/Python 3.*Idle/")
    page.click(".lm-MenuBar-itemLabel:text-is('Run')")
    page.click("li[data-command='runmenu:run-all']")


def run_both(page: Page) -> None:
    """Run both sides of the panel, and wait for the verdict and the timeline."""
    page.click(".les-panel button.les-both:not([disabled])")
    page.wait_for_selector(".les-panel .les-verdict.les-exact, .les-panel .les-verdict.les-differs")
    page.wait_for_selector(".les-panel button.les-both:not([disabled])")
    page.wait_for_selector(".les-timeline svg .les-span")


def screenshot(page: Page, path: Path) -> None:
    """The panel, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.mouse.move(2, 2)
    page.locator(".les-panel").screenshot(path=str(path), animations="disabled")


def main() -> None:
    """Draw the panel after a run of both sides."""
    target = Path(sys.argv[1])
    if why := missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="les-panel-") as scratch:
        cell = nbformat.v4.new_code_cell("import workbench as wb\n\nwb.panel()")
        notebook = nbformat.v4.new_notebook(cells=[cell])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, Path(scratch) / "panel.ipynb")
        with jupyter_lab(Path(scratch)) as address, browser_page() as page:
            run_all(page, address, "panel.ipynb")
            page.wait_for_selector(".les-panel")
            run_both(page)
            screenshot(page, target)


if __name__ == "__main__":
    main()
