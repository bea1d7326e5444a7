"""What xtask cannot do in Rust, because the tools exist for Python only. JSON in, JSON out.

render KUBECTL KUBERNETES CHART   every overlay, example, and values file of the chart, as objects
validate VERSION...               errors of the objects on stdin, one list for each object
"""

import json
import pathlib
import subprocess
import sys

import yaml


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def kustomize(kubectl, folder):
    command = [kubectl, "kustomize", str(folder)]
    return documents(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def helm_values(folder):
    files = sorted(folder.glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text()) or {} for file in files}


def helm_objects(chart, values, name="orchestrator", namespace="orchestrator"):
    manifests = chart.render(values, name=name, namespace=namespace)
    found = []
    for path, text in sorted(manifests.items()):
        if not path.endswith(".txt"):
            found += documents(text)
    return found


def helm_refusals(chart, cases):
    import helm_python

    said = {}
    for name, values in cases.items():
        try:
            helm_objects(chart, values)
            said[name] = None
        except helm_python.HelmError as error:
            said[name] = str(error)
    return said


def render(kubectl, kubernetes, chart_folder):
    import helm_python

    kubernetes, chart_folder = pathlib.Path(kubernetes), pathlib.Path(chart_folder)
    overlays = sorted((kubernetes / "overlays").iterdir())
    findings = helm_python.lint(str(chart_folder), strict=True)
    with helm_python.Chart.load(str(chart_folder)) as chart:
        cases = helm_values(chart_folder / "ci")
        rendered = {name: helm_objects(chart, values) for name, values in cases.items()}
        # Under any other name the objects must find each other too.
        other = helm_objects(chart, cases["everything"], name="eval", namespace="team")
        rendered["everything, release eval"] = other
        return {
            "kustomize": {folder.name: kustomize(kubectl, folder) for folder in overlays},
            "examples": {
                file.stem: documents(file.read_text())
                for file in sorted((kubernetes / "examples").glob("*.yaml"))
            },
            "helm": rendered,
            "refused": helm_refusals(chart, helm_values(chart_folder / "ci" / "refused")),
            "lint": findings if isinstance(findings, (list, dict)) else str(findings),
        }


def own_schemas():
    folder = pathlib.Path(__file__).parent / "schemas"
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def errors(manifest, versions, schemas):
    import jsonschema
    import kubernetes_validate

    own = schemas.get(manifest.get("kind"))
    if own:
        found = jsonschema.Draft202012Validator(own).iter_errors(manifest)
        return [f"{error.json_path}: {error.message}" for error in found]
    found = []
    for version in versions:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(str(step) for step in error.path)
            found.append(f"Kubernetes {version}: {place}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(error.message)
    return found


def validate(versions):
    schemas = own_schemas()
    return [errors(manifest, versions, schemas) for manifest in json.load(sys.stdin)]


def main():
    verb, *arguments = sys.argv[1:]
    result = render(*arguments) if verb == "render" else validate(arguments)
    json.dump(result, sys.stdout)


main()
