"""A small synthetic bulk export of FHIR R4, and expressions over it."""

import json

import numpy as np

LOINC = "http://loinc.org"
SODIUM = f"Observation.where(code.coding.exists(system = '{LOINC}' and code = '2951-2'))"
FEATURES = [
    {"column": "sex", "expression": "Patient.gender"},
    {"column": "born", "expression": "Patient.birthDate.substring(0, 4).toInteger()"},
    {"column": "sodium", "expression": f"{SODIUM}.last().value.value"},
    {"column": "stays", "expression": "Encounter.count()"},
    {"column": "diabetes", "expression": "Condition.where(code.text = 'diabetes').exists()"},
]


def made_up(n_patients, *, seed):
    rng = np.random.default_rng(seed)
    resources = [{"resourceType": kind, "id": "x"} for kind in ("Organization", "Appointment")]
    for number in range(n_patients):
        patient, name = {"reference": f"Patient/p{number}"}, f"p{number}"
        resources.append(
            {"resourceType": "Patient", "id": name, "gender": str(rng.choice(["female", "male"]))}
            | {"birthDate": f"{rng.integers(1930, 2005)}-03-01"}
        )
        for place in range(rng.integers(0, 4)):
            day, hour = rng.integers(1, 4), rng.integers(10, 13)
            code, value = str(rng.choice(["2951-2", "2823-3"])), int(rng.integers(1200, 1600)) / 10
            resources.append(
                {"resourceType": "Observation", "id": f"o{number}-{place}", "subject": patient}
                | {"code": {"coding": [{"system": LOINC, "code": code}]}}
                | {"effectiveDateTime": f"2020-01-0{day}T{hour}:00:00+0{place}:00"}
                | {"valueQuantity": {"value": value, "unit": "mmol/L"}}
            )
        kinds = {"Encounter": rng.integers(0, 3), "Condition": rng.integers(0, 2)}
        for kind, count in kinds.items():
            resources += [
                {"resourceType": kind, "id": f"{kind[0]}{number}-{place}", "subject": patient}
                | {"code": {"text": "diabetes"}}
                for place in range(count)
            ]
    return [resources[place] for place in rng.permutation(len(resources))]


def write(folder, resources, n_files=3):
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for number in range(n_files):
        lines = [json.dumps(one) + "\n" for one in resources[number::n_files]]
        (folder / f"part.{number}.ndjson").write_text("".join(lines))


def subject_of(resource):
    return resource.get("subject", {}).get("reference", f"Patient/{resource['id']}")[8:]
