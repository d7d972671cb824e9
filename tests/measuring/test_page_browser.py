"""The report in a real browser: no script fails, nothing scrolls sideways, keys reach what a pointer reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium

import hydrasurgeon as hs

pytestmark = [pytest.mark.slow, pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")]
NASTY = '<script>document.title="owned"</script><img src=x onerror="document.title=1">&"\''
LONG = "a-name-without-end-" * 20
COVERED = """(() => {
  const wrong = [];
  for (const svg of document.querySelectorAll("svg")) {
    const card = (svg.closest("figure") || svg.closest("li")).getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text:not(.in-dot)")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([text, box], at) => {
      if (box.left < card.left || box.right > card.right || box.height < 9) wrong.push(text);
      for (const [other, its] of texts.slice(at + 1)) {
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 2 && down > 3) wrong.push(`${text} / ${other}`);
      }
    });
  }
  return wrong;
})()"""
"""Texts of charts that leave their card, lie upon each other or are too small to be read."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path) -> Path:
    """A report with all that one can hold: heads, OOD sets, shifts, several sets, hostile and long names."""
    source = tiny()
    files = [hs.prune(source, method="random", keep=2, seed=s, out=tmp_path / f"m{s}.safetensors").path for s in (1, 2)]
    hydra = hs.fuse(files, out=tmp_path / f"{NASTY.replace('/', '|')}.safetensors").path
    long = hs.prune(source, method="random", keep=1, out=tmp_path / f"{LONG[:200]}.safetensors").path
    hs.evaluate(
        [source, hydra, long],
        data=[f"one={images()}", f"two={images('two.npz', seed=4)}"],
        ood=[f"near:<b onerror>&={images('near.npz', seed=5)}", f"far:{LONG}={images('far.npz', seed=6)}"],
        shift=[f"noise:{s}={images(f's{s}.npz', seed=s)}" for s in (1, 2)],
        ci=0.9,
        html=tmp_path / "r.html",
    )
    return tmp_path / "r.html"


def test_the_report_in_a_browser(browser: Browser, page: Path) -> None:
    grounds = set()
    for width in (1280, 390):
        for dark in (False, True):
            browser.open(page, width=width, dark=dark)
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.value("document.body.scrollWidth") <= width
            assert browser.value(COVERED) == []
            assert browser.value("document.title").startswith("Compared with ")
            grounds.add((dark, browser.value("getComputedStyle(document.body).backgroundColor")))
    assert len(grounds) == 2
    assert browser.errors == []
    # Names are text: of elements there are those of the page alone.
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert "onerror" in browser.value("document.body.innerText")
    # The policy lets no other script run, not even one that is there.
    assert (
        browser.value(
            "(() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1';"
            " document.body.append(s); return typeof window.owned; })()"
        )
        == "undefined"
    )
    browser.errors.clear()  # which was said


def test_keys_reach_what_a_pointer_reaches(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280, dark=False)
    browser.key("Tab")
    assert browser.value("document.activeElement.className") == "skip"
    assert browser.value("document.getElementById('tip').hidden")
    for chart in ("curves", "map"):
        wanted = "svg.map" if chart == "map" else "#ood svg"
        browser.value(f"document.querySelector({wanted!r}).focus()")
        told = []
        for _ in range(3):
            browser.key("ArrowRight")
            assert not browser.value("document.getElementById('tip').hidden")
            told.append(browser.value("document.getElementById('tip').textContent"))
            box = browser.value(
                "(() => { const b = document.getElementById('tip').getBoundingClientRect(); return [b.left, b.right,"
                " b.top]; })()"
            )
            assert box[0] >= 0
            assert box[1] <= 1280
        assert len(set(told)) == 3
        browser.key("Escape")
        assert browser.value("document.getElementById('tip').hidden")
    assert browser.errors == []


def test_a_screen_reader_finds_names(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280, dark=False)
    browser.send("Accessibility.enable")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    for role in ("image", "table", "region", "heading", "listitem", "link"):
        assert any(each == role for each, _ in roles), role
    unnamed = [role for role, name in roles if role in ("image", "table", "region", "heading", "link") and not name]
    assert unnamed == []
    headers = [node["role"]["value"] for node in nodes if not node["ignored"]]
    assert {"columnheader", "rowheader"} <= set(headers)
