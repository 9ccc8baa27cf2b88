"""Writes and reads one golden case: NAME.safetensors with the arrays, NAME.json with what they mean."""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}


def compare(arrays, exact):
    """The worst difference of a float32 run from a float64 run of the same thing."""
    worst = {"max_abs_diff": 0.0, "max_diff_over_scale": 0.0, "array": "", "array_scaled": ""}
    for name, values in arrays.items():
        if name not in exact:
            continue
        wanted = np.asarray(exact[name], np.float64)
        difference = float(np.abs(values.astype(np.float64) - wanted).max())
        scaled = difference / max(float(np.abs(wanted).max()), 1e-12)
        if difference >= worst["max_abs_diff"]:
            worst |= {"max_abs_diff": difference, "array": name}
        # Gradients that are zero but for rounding have no scale to compare with.
        if scaled >= worst["max_diff_over_scale"] and np.abs(wanted).max() > 1e-6:
            worst |= {"max_diff_over_scale": scaled, "array_scaled": name}
    assert worst["max_abs_diff"] < TOLERANCE["atol"], worst
    return worst


def write(folder, name, description, formula, reference, config, arrays, meanings, check, notes=(), margin=None):
    """`meanings` says what every array is; it must name exactly the arrays that there are."""
    assert set(meanings) == set(arrays), set(meanings) ^ set(arrays)
    kinds = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32"}
    arrays = {key: np.array(values, order="C") for key, values in arrays.items()}
    case = {
        "case": name,
        "set": "public",
        "description": description,
        "formula": formula,
        "reference": reference,
        "config": config,
        "tolerance": TOLERANCE,
        "notes": list(notes),
        "float64_check": check,
    }
    if margin is not None:
        case["selection_margin"] = margin
    case["arrays"] = {
        key: {"shape": list(arrays[key].shape), "dtype": kinds[arrays[key].dtype], "meaning": meanings[key]}
        for key in meanings
    }
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")


def read(folder, name):
    """The description and the arrays of a case."""
    folder = pathlib.Path(folder)
    return json.loads((folder / f"{name}.json").read_text()), load_file(folder / f"{name}.safetensors")


def check(name, found, arrays):
    """Fails unless every array of a stored case is what was found, at the case's tolerance."""
    results = [key for key in arrays if not key.startswith(("input/", "param/"))]
    for key in results:
        np.testing.assert_allclose(found[key], arrays[key], **TOLERANCE, err_msg=f"{name}: {key}")
    print(f"{name}: {len(results)} stored arrays agree")
