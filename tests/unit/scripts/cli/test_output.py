import json

from scripts.cli.output import print_json, report_error


def test_an_object_that_says_nothing_else_is_ok(capsys):
    print_json({"policy": "random"})
    assert json.loads(capsys.readouterr().out) == {"ok": True, "policy": "random"}


def test_an_object_that_is_not_ok_stays_so(capsys):
    print_json({"ok": False, "bars": []})
    assert json.loads(capsys.readouterr().out) == {"ok": False, "bars": []}


def test_an_error_is_one_object_that_is_not_ok(capsys):
    report_error("no [cluster] here", "start one", as_json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    error = {"message": "no [cluster] here", "hint": "start one"}
    assert json.loads(out) == {"ok": False, "error": error}
