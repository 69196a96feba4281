# SPDX-License-Identifier: Apache-2.0
"""The report: what it says about a comparison, what it does with holes in it, and how it behaves in a browser."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image
from sample_comparison import MODULES, STREET_PALETTE, sample_comparison

from widefield.lab.report import write_report
from widefield.lab.report.colours import module_colours, oklch_to_hex
from widefield.lab.report.cost_figures import cost_figures, pareto_front
from widefield.lab.report.evidence import EvidenceError, read_evidence
from widefield.lab.report.examples import example_views
from widefield.lab.report.figures import curve_figures, spectrum_figures
from widefield.lab.report.images import heat_map, label_map, photo
from widefield.lab.report.plot import round_places
from widefield.lab.report.rows import clear_best, read_rows, shown_at_first
from widefield.lab.report.tables import class_table, scale_of
from widefield.lab.report.units import count, duration, memory, share
from widefield.lab.summary import sentence

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>&amp;'


class Page(HTMLParser):
    """The elements of a page, and the text outside of scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Page]:
    out = tmp_path_factory.mktemp("street")
    summary = sample_comparison(out, modules=9, seeds=3, street=True)
    return out, summary, Page(write_report(summary, out).read_text(encoding="utf-8"))


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


def test_numbers_read_as_people_write_them():
    assert [count(v) for v in (None, 0, 512, 9.2e6, 999_900, 1_234_567_890)] == [
        "–", "0", "512", "9.20 M", "1.00 M", "1.23 G"
    ]  # fmt: skip
    assert [memory(v) for v in (0, 1023, 1024, 3 * 2**20)] == ["0 B", "1023 B", "1.00 KiB", "3.00 MiB"]
    assert [duration(v) for v in (2e-4, 0.0125, 12, 200, 3900)] == [
        "200 µs", "12.5 ms", "12.0 s", "3 min 20 s", "1 h 05 min"
    ]  # fmt: skip
    assert [share(v, sign=True) for v in (0.0312, -0.02, -0.0001)] == ["+0.031", "−0.020", "0.000"]


def test_pareto_front():
    #          dear, good    cheap, bad   dominated    cheap and as bad  best
    points = [(5.0, 0.7), (0.0, 0.4), (6.0, 0.6), (0.0, 0.3), (9.0, 0.9)]
    assert pareto_front(points) == [1, 0, 4]
    assert pareto_front([(1.0, 0.5), (1.0, 0.5)]) == [0, 1]


def test_round_places_of_a_logarithmic_axis():
    assert round_places(2.4e6, 3.4e8) == pytest.approx([3e6, 1e7, 3e7, 1e8, 3e8])
    assert round_places(1, 64) == pytest.approx([1, 3, 10, 30])
    assert round_places(7.01, 7.02) == [7.01, 7.02]
    assert len(round_places(1e-6, 1e6)) == 13


def test_best_is_bold_only_when_its_interval_lies_above_all_others():
    def best(*given: tuple[float, float | None]) -> int | None:
        rows = read_rows(
            {"rows": [{"module": f"m{i}", "mean": m, "half_width": h} for i, (m, h) in enumerate(given)]}
        )
        return clear_best(rows, lambda row: (row.mean, row.half_width))

    assert best((0.7, 0.01), (0.6, 0.02)) == 0
    assert best((0.7, 0.06), (0.6, 0.05)) is None
    # A narrow runner-up may reach less high than a wide third.
    assert best((0.7, 0.02), (0.6, 0.01), (0.5, 0.3)) is None
    assert best((0.7, None), (0.6, None)) is None
    assert best((0.7, 0.01)) is None


def test_colours_keep_their_contrast():
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    families = [facts[1] for facts in MODULES] + ["imaging", "somebody else's"]
    light, dark = module_colours(families)
    assert min(1.05 / (luminance(colour) + 0.05) for colour in light) >= 3
    assert min((luminance(colour) + 0.05) / (luminance("#1c1f24") + 0.05) for colour in dark) >= 3
    assert len(set(light)) == len(light)
    # Ottosson's published coordinates of sRGB red.
    assert oklch_to_hex(0.62796, 0.25768, 29.234) == "#ff0000"
    assert oklch_to_hex(1.0, 0.0, 0.0) == "#ffffff"


def test_pictures_hold_what_the_arrays_hold():
    image = np.random.default_rng(0).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    assert (np.asarray(decoded(photo(image))) == image).all()
    labels = np.array([[0, 1, 10], [255, 2, 0]], dtype=np.uint8)
    shown = np.asarray(decoded(label_map(labels, STREET_PALETTE)).convert("RGBA"))
    for row, column in np.ndindex(labels.shape):
        if labels[row, column] == 255:
            assert shown[row, column, 3] == 0
        else:
            assert tuple(shown[row, column]) == (*STREET_PALETTE[labels[row, column]], 255)
    hidden = decoded(label_map(labels, STREET_PALETTE, ignored=labels == 1)).convert("RGBA")
    assert np.asarray(hidden)[0, 1, 3] == 0
    # Without a palette every class still has a colour of its own.
    assert (
        len(np.unique(np.asarray(decoded(label_map(labels[:1], [])).convert("RGB")).reshape(-1, 3), axis=0)) == 3
    )


def test_heat_grows_with_the_value_and_negatives_are_blue():
    ramp = np.asarray(decoded(heat_map(np.linspace(0, 2, 64)[None])).convert("RGBA").convert("L")).astype(int)[0]
    assert (np.diff(ramp) >= 0).all()
    assert ramp[0] < 10
    assert ramp[-1] > 240
    signed = np.asarray(decoded(heat_map(np.array([[-1.0, 0.0, 1.0]]))).convert("RGBA")).astype(int)[0]
    assert signed[0, 2] > signed[0, 0] + 50
    assert signed[1, :3].max() < 20
    assert np.asarray(decoded(heat_map(np.zeros((2, 2)))).convert("RGBA").convert("L")).max() < 10


def test_large_photographs_are_reduced():
    image = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    assert max(decoded(photo(image)).size) <= 560
    assert decoded(label_map(np.zeros((900, 1200), np.uint8), STREET_PALETTE)).size == (300, 225)


def test_figures_are_valid_plotly(sample):
    out, summary, _ = sample
    rows = read_rows(summary)
    evidence = {row.index: read_evidence(out, row.source["evidence"]) for row in rows if row.source["evidence"]}
    figures = cost_figures(rows) | curve_figures(rows, {0, 1}) | spectrum_figures(rows, evidence, {0, 1})
    assert set(figures) == {
        "multiply_adds", "parameters", "activation_memory_forward", "activation_memory_training",
        "latency_forward", "latency_training", "loss", "miou", "energy", "rank",
    }  # fmt: skip
    for figure in figures.values():
        text = re.sub(r'"--[\w-]+"', '"#123456"', json.dumps(figure, allow_nan=False))
        go.Figure(json.loads(text))
    points = {trace["name"]: trace for trace in figures["parameters"]["data"]}
    # 16640 parameters; the baseline has none, and stands left of the smallest.
    assert points["nonlocal"]["x"] == [pytest.approx(np.log10(16640))]
    assert points["none"]["x"][0] < points["global-average"]["x"][0]
    assert figures["parameters"]["layout"]["xaxis"]["ticktext"][0] == "0"
    mean = next(t for t in figures["miou"]["data"] if t["name"] == "nonlocal" and "label" in t["meta"])
    curves = next(row for row in summary["rows"] if row["module"] == "nonlocal")["curves"]
    np.testing.assert_allclose(mean["y"], np.mean([c["eval_miou"] for c in curves], axis=0), rtol=1e-4)


def test_spectra_are_the_energies_of_the_singular_values(sample):
    out, summary, _ = sample
    found = read_evidence(out, summary["rows"][1]["evidence"])
    values = np.load(out / summary["rows"][1]["evidence"])["spectrum_after"]
    assert found.after is not None
    np.testing.assert_allclose(found.after, np.cumsum(values**2) / np.sum(values**2))
    weights = values / values.sum()
    assert found.rank_after == pytest.approx(np.exp(-np.sum(weights * np.log(weights))))


def test_table_says_what_was_measured(sample):
    _, summary, page = sample
    for row in summary["rows"]:
        assert row["module"] in page.text
        if row["mean"] is not None:
            assert f"{row['mean']:.3f} ± {row['half_width']:.3f}" in page.text
    for text in (summary["verdict"], summary["command"], "the loss is not finite at step 212", "truncated"):
        assert text in page.text
    better = sum(row["difference"]["verdict"] == "better" for row in summary["rows"] if row["difference"])
    assert f"{better} better than none" in re.sub(r"\s+", " ", page.text)
    assert {"row", "col", "colgroup"} <= {th.get("scope") for th in page.all("th")}
    assert all(image.get("alt") for image in page.all("img"))
    assert page.all("html")[0]["lang"] == "en"


def test_page_asks_nothing_of_the_network(sample):
    out, _, page = sample
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, f"{tag} {name}={value[:60]}"
        assert not re.search(r"url\((?!data:)", attributes.get("style") or "")
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'")
    runnable = [s for s, a in zip(page.scripts, page.all("script"), strict=True) if "type" not in a]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in runnable]
    assert len(hashes) == 2
    assert all(f"'sha256-{digest}'" in policy for digest in hashes)
    size = (out / "report.html").stat().st_size
    assert size < 8e6
    assert not list(out.glob("*.tmp")) + list(out.glob(".*"))


def test_same_summary_gives_the_same_page(sample, tmp_path):
    out, summary, _ = sample
    first = (out / "report.html").read_bytes()
    assert write_report(json.loads(json.dumps(summary)), out).read_bytes() == first


def test_text_stays_text(tmp_path):
    summary = sample_comparison(tmp_path, modules=4, seeds=2, street=True, examples=1)
    summary |= {"title": HOSTILE, "verdict": HOSTILE, "command": HOSTILE, "version": HOSTILE}
    summary["data"]["classes"][2] = HOSTILE
    summary["data"]["problems"] = [HOSTILE]
    summary["setting"]["machine"] = HOSTILE
    summary["rows"][1] |= {"module": HOSTILE, "title": HOSTILE, "family": HOSTILE, "options": {HOSTILE: HOSTILE}}
    summary["rows"][2] |= {"status": "failed", "error": HOSTILE}
    summary["gradients"][0]["module"] = HOSTILE
    source = write_report(summary, tmp_path).read_text(encoding="utf-8")
    page = Page(source)
    assert page.text.count(HOSTILE) >= 8
    assert len(page.all("script")) == 3
    assert not [a for _, a in page.elements if "onerror" in a]
    assert '<script>alert("x")' not in source


def test_holes_do_not_break_the_page(tmp_path):
    summary = sample_comparison(tmp_path, modules=9, seeds=1, examples=1)
    nan = float("nan")
    summary["rows"][1] |= {"mean": nan, "values": [nan], "per_class": {"other": nan}, "multiply_adds": None}
    summary["rows"][2] |= {"curves": [{"seed": 0, "steps": [1, 2, 3], "loss": [1.0, nan, None]}], "evidence": None}
    summary["rows"][3] |= {"status": "unfinished", "latency_forward": None, "latency_training": nan}
    page = Page(write_report(summary, tmp_path).read_text(encoding="utf-8"))
    assert "There is one seed" in page.text
    assert "nan" not in page.text.lower().replace("finance", "")
    assert "unfinished" in page.text
    json.loads(page.scripts[0], parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "summary", [{}, {"rows": []}, {"rows": [{"module": "none"}], "data": None, "setting": None}]
)
def test_an_almost_empty_summary_is_a_page(summary, tmp_path):
    page = Page(write_report(summary, tmp_path / "new").read_text(encoding="utf-8"))
    assert "Which module segments best" in page.text


def test_unusable_summaries_are_refused(tmp_path):
    with pytest.raises(TypeError, match="a dict, got list"):
        write_report([], tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="row 1 of the summary names no module"):
        write_report({"rows": [{"module": "none"}, {"mean": 0.5}]}, tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_damaged_evidence_is_named_and_the_rest_is_shown(tmp_path):
    summary = sample_comparison(tmp_path, modules=5, seeds=2, examples=1)
    paths = [tmp_path / row["evidence"] for row in summary["rows"]]
    paths[0].write_bytes(paths[0].read_bytes()[:900])
    paths[1].unlink()
    arrays = dict(np.load(paths[2])) | {"sees": np.ones((1, 4), np.float32)}
    np.savez(paths[2], **arrays)  # type: ignore[arg-type]
    summary["rows"][3]["evidence"] = "../elsewhere.npz"
    page = Page(write_report(summary, tmp_path).read_text(encoding="utf-8"))
    for reason in ("none/evidence.npz: damaged", "nonlocal/evidence.npz: no such file", "outside of the folder",
                   "hamburger-nmf/evidence.npz: sees 0 must be numbers of 2 dimensions"):  # fmt: skip
        assert reason in page.text
    assert any("predicted with hamburger-vq" in (image["alt"] or "") for image in page.all("img"))


def test_pickled_evidence_is_not_opened(tmp_path):
    np.savez(tmp_path / "evidence.npz", images_0=np.array([{"a": 1}], dtype=object))
    with pytest.raises(EvidenceError, match="damaged"):
        read_evidence(tmp_path, "evidence.npz")


def test_stacked_and_single_evidence_mean_the_same(tmp_path):
    sample_comparison(tmp_path, modules=3, seeds=2, examples=2)
    stacked = dict(np.load(tmp_path / "nonlocal/evidence.npz"))
    single = {name: value for name, value in stacked.items() if "spectrum" in name}
    for name in set(stacked) - set(single):
        single |= {f"{name}_{k}": entry for k, entry in enumerate(stacked[name])}
    np.savez(tmp_path / "single.npz", **single)
    one, other = read_evidence(tmp_path, "nonlocal/evidence.npz"), read_evidence(tmp_path, "single.npz")
    for a, b in zip(one.examples, other.examples, strict=True):
        for name in ("image", "label", "prediction", "sees", "attention"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert a.pixel == b.pixel
    example = one.examples[0]
    labelled = example.label != 255
    assert example.right == pytest.approx(np.mean(example.prediction[labelled] == example.label[labelled]))


def test_pictures_stay_within_the_budget(sample):
    out, summary, _ = sample
    found = {k: read_evidence(out, row["evidence"]) for k, row in enumerate(summary["rows"]) if row["evidence"]}
    views, left_out = example_views(found, STREET_PALETTE)
    assert (len(views), left_out) == (3, 0)
    assert [len(view["modules"]) for view in views] == [8, 8, 8]
    views, left_out = example_views(found, STREET_PALETTE, budget=1)
    assert (len(views), left_out) == (1, 2)


def test_classes_are_coloured_by_their_difference_to_the_baseline():
    def row(module: str, **scores: float | None) -> dict[str, Any]:
        return {"module": module, "mean": 0.5, "per_class": scores}

    given = {"rows": [row("none", a=0.5, b=0.5, c=None), row("m", a=0.7, b=0.45, c=0.3)]}
    table = class_table(read_rows(given), ["a", "b", "c"], "none")
    assert table is not None
    cells = {line["row"].module: line["cells"] for line in table["lines"]}
    assert [(c["text"], c["tint"], c["gain"]) for c in cells["m"]] == [
        ("0.70", 100, True), ("0.45", 25, False), ("0.30", 0, True)
    ]  # fmt: skip
    assert cells["none"][2]["text"] == "–"
    assert class_table(read_rows(given), ["a", "b"], "none") is None


def test_scale_holds_all_and_ends_on_round_figures():
    scale = scale_of([(0.5, 0.02, [0.49, 0.51]), (0.71, None, [0.71]), (None, None, [])])
    assert (scale.low, scale.high) == (pytest.approx(0.45), pytest.approx(0.75))
    wide = scale_of([(0.5, 3.0, [0.5])])
    assert (wide.low, wide.high) == (0, 1)
    assert (wide.place(0.25), wide.place(7.0)) == (25, 100)


def test_leaders_and_baseline_are_shown_of_many(tmp_path):
    rows = read_rows(sample_comparison(tmp_path, modules=30, seeds=2, examples=1))
    shown = {rows[k].module for k in shown_at_first(rows, "none")}
    assert len(shown) == 6
    assert "none" in shown
    assert rows[-1].status == "failed"


def test_a_module_in_two_gradients_is_told_apart():
    given = [{"module": "hamburger-nmf", "gradient": g, "mean": 0.5} for g in ("one_step", "unrolled")]
    assert [row.label for row in read_rows({"rows": given})] == [
        "hamburger-nmf (one_step)",
        "hamburger-nmf (unrolled)",
    ]


def test_a_sentence_about_many_modules_stays_one():
    rows = [
        {"module": f"m{k}", "status": "finished", "difference": {"verdict": "no difference", "mean": k / 100}}
        for k in range(57)
    ]
    said = sentence([*rows, {"module": "none", "status": "finished", "difference": None}], "none", "scenes")
    assert "m56 (+0.560)" in said
    assert "and 49 more, down to +0.000" in said
    assert "m48 (" not in said
    few = sentence(rows[:8], "none", "scenes")
    assert "m0 (+0.000)" in few
    assert "more" not in few


def test_a_curve_of_one_point_is_seen():
    curves = [{"steps": [10], "loss": [0.6], "eval_steps": [2, 10], "eval_miou": [0.2, 0.3]}]
    rows = read_rows({"rows": [{"module": "a2", "mean": 0.3, "curves": curves}]})
    figures = curve_figures(rows, {0})
    assert [t["mode"] for t in figures["loss"]["data"]] == ["markers"]
    assert [t["mode"] for t in figures["miou"]["data"]] == ["lines"]


def test_a_venue_that_holds_its_year_is_not_given_it_twice(tmp_path):
    rows = [
        {"module": "non-local-means", "title": "N", "paper": "CVPR 2005", "year": 2005, "mean": 0.1},
        {"module": "glore", "title": "G", "paper": "arXiv:1811.12814", "year": 2019, "mean": 0.1},
    ]
    text = Page(write_report({"rows": rows}, tmp_path).read_text(encoding="utf-8")).text
    assert "(CVPR 2005)" in text
    assert "(arXiv:1811.12814, 2019)" in text


# In a browser.


@pytest.fixture(scope="module")
def browser():
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("no Chromium on the path")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield browser
        browser.close()


def until(page, expression: str) -> None:
    """Waits for an expression to become true; Playwright's own way needs eval, which the page forbids."""
    for _ in range(100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never came true: {expression}")


def opened(browser, path: Path, width: int = 1280, height: int = 900, **context: Any):
    """The page once its charts are drawn, and everything that went wrong."""
    page = browser.new_context(viewport={"width": width, "height": height}, **context).new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url[:80]}"))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url))
    page.goto(path.as_uri())
    if context.get("java_script_enabled", True):
        until(page, "[...document.querySelectorAll('.plot-box')].every(box => box.querySelector('.main-svg'))")
        page.wait_for_timeout(300)
    return page, wrong


def column(page, index: int) -> list[str]:
    return page.eval_on_selector_all(
        "#table tbody tr", f"rows => rows.map(row => row.cells[{index}].dataset.sort)"
    )  # fmt: skip


def test_desktop(browser, sample):
    out, _, _ = sample
    page, wrong = opened(browser, out / "report.html")
    assert page.locator(".plot-box").count() == 5
    assert page.locator("#plot-cost .scatterlayer .trace").count() == 9
    assert page.locator("#plot-cost .annotation-text").count() == 8
    buttons = page.eval_on_selector_all("#plot-cost .modebar-btn", "all => all.map(b => b.dataset.title)")
    assert buttons == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]
    # Sorted by mIoU as it comes; the failed row, without one, last.
    values = column(page, 1)
    assert values[-1] == ""
    assert [float(v) for v in values[:-1]] == sorted(map(float, values[:-1]), reverse=True)
    parameters = page.get_by_role("button", name="parameters", exact=True)
    parameters.focus()
    page.keyboard.press("Enter")
    assert [float(v) for v in column(page, 6)] == sorted(map(float, column(page, 6)))
    assert parameters.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Space")
    assert [float(v) for v in column(page, 6)] == sorted(map(float, column(page, 6)), reverse=True)
    page.get_by_role("button", name="against none").click()
    assert column(page, 3)[-2:] == ["", ""]
    # Another cost, and one module less.
    page.locator(".choice").get_by_text("Parameters").click()
    until(page, "document.getElementById('plot-cost').layout.xaxis.title.text.startsWith('parameters')")
    before = page.locator("#plot-miou .scatterlayer .trace").count()
    page.locator(".chip", has_text="nonlocal").click()
    until(page, f"document.querySelectorAll('#plot-miou .scatterlayer .trace').length === {before - 4}")
    assert page.locator("#examples details[open] .strip:not([hidden])").count() == 8
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_follow_the_scheme(browser, sample, scheme):
    out, _, _ = sample
    page, wrong = opened(browser, out / "report.html", color_scheme=scheme)
    paper = page.evaluate("document.getElementById('plot-cost').layout.paper_bgcolor")
    assert paper == {"light": "#ffffff", "dark": "#1c1f24"}[scheme]
    page.emulate_media(color_scheme={"light": "dark", "dark": "light"}[scheme])
    until(page, f"document.getElementById('plot-cost').layout.paper_bgcolor !== '{paper}'")
    assert wrong == []


@pytest.mark.parametrize("modules", [4, 30])
def test_phone(browser, tmp_path, modules):
    summary = sample_comparison(tmp_path, modules=modules, seeds=2, examples=1, street=modules == 4)
    summary["title"] = "Averyveryveryverylongwordthatisthenameofafolderofpictures"
    summary["rows"][1]["module"] = "somebody-elses-module-with-a-remarkably-long-name-of-its-own"
    page, wrong = opened(
        browser, write_report(summary, tmp_path), 390, 844, is_mobile=True, has_touch=True, device_scale_factor=2
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.scrollWidth") <= 390
    widths = page.eval_on_selector_all(
        ".plot-box .main-svg", "all => all.map(svg => svg.getBoundingClientRect().right)"
    )
    assert widths
    assert max(widths) <= 390
    assert wrong == []


def test_hostile_names_run_nothing(browser, tmp_path):
    summary = sample_comparison(tmp_path, modules=4, seeds=2, examples=1)
    summary["rows"][1]["module"] = HOSTILE
    summary["data"]["classes"] = [HOSTILE, "<b>b</b>"]
    page, wrong = opened(browser, write_report(summary, tmp_path))
    assert page.get_by_text("<script>alert", exact=False).count() > 0
    page.locator(".choice label").nth(1).click()
    page.wait_for_timeout(200)
    assert wrong == []


def test_without_scripts_table_and_pictures_stay(browser, sample):
    out, summary, _ = sample
    page, _ = opened(browser, out / "report.html", java_script_enabled=False)
    assert page.locator("#table tbody tr").count() == len(summary["rows"])
    assert page.locator("#examples details[open] img").first.evaluate("image => image.naturalWidth") > 0
    assert page.get_by_text("This chart needs JavaScript").first.is_visible()
    assert not page.locator(".picker").is_visible()


def test_half_a_comparison_has_no_errors_either(browser, tmp_path):
    summary = copy.deepcopy(sample_comparison(tmp_path, modules=3, seeds=1, examples=1))
    summary["gradients"] = []
    for row in summary["rows"][1:]:
        row |= {"status": "failed", "error": None, "mean": None, "values": [], "evidence": None, "curves": []}
    page, wrong = opened(browser, write_report(summary, tmp_path))
    assert page.locator("#cost").count() == 0
    assert wrong == []
