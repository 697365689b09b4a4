"""T15: logs that cannot be written cost one warning and are counted; training is unaffected."""

import json


def test_a_log_that_fails_is_counted_and_the_weights_are_the_same(tiny, tmp_path):
    out = tmp_path / "run"
    faults = ",".join(f"log.before:{n}=raise:EIO" for n in range(1, 4))
    done = tiny.run(out, env={"VITRAIL_FAULT": faults})
    assert done.code == 0 and done.text.count("cannot be written") == 1, done.text
    state = json.loads((out / "checkpoints/step-00000012/state.json").read_text())
    assert state["counters"]["log_failures"] == 3
    ours, golden = tiny.digest(out), tiny.digest(tiny.golden())
    assert len(ours["lines"]) == len(golden["lines"]) - 3
    assert all(ours[name] == golden[name] for name in golden if name.endswith("safetensors"))
