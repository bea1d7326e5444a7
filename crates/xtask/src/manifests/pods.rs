//! What we ask of every pod: the restricted Pod Security Standard, and more.

use serde_json::Value;

/// Volumes that the restricted standard allows.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const HEALTH_PORT: u64 = 7072;
/// `sun_path` of `sockaddr_un` less the file's name, with room for many executors.
const SCRATCH_LIMIT: usize = 80;

/// The pod template of an object that has one.
pub(super) fn template(object: &Value) -> Option<&Value> {
    matches!(object["kind"].as_str()?, "StatefulSet" | "Deployment" | "Job")
        .then(|| object.pointer("/spec/template"))
        .flatten()
}

pub(super) fn problems(object: &Value) -> Vec<String> {
    let Some(template) = template(object) else { return Vec::new() };
    let pod = &template["spec"];
    let service = object["kind"] != "Job";
    let mut found = Findings(Vec::new());
    of_pod(pod, &mut found);
    of_volumes(pod, object, &mut found);
    for container in list(&pod["containers"]).chain(list(&pod["initContainers"])) {
        of_container(container, &mut found);
        of_resources(container, &mut found);
        if service {
            of_probes(container, &mut found);
        }
        of_mounts(container, pod, object, &mut found);
        of_worker(container, pod, &mut found);
    }
    found.0
}

struct Findings(Vec<String>);

impl Findings {
    fn unless(&mut self, fine: bool, message: impl Into<String>) {
        if !fine {
            self.0.push(message.into());
        }
    }
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn of_pod(pod: &Value, found: &mut Findings) {
    let security = &pod["securityContext"];
    found.unless(security["runAsNonRoot"] == true, "runAsNonRoot is not true");
    found.unless(security["runAsUser"].as_u64().is_some_and(|user| user != 0), "runs as root");
    found.unless(
        security["seccompProfile"]["type"] == "RuntimeDefault",
        "seccompProfile is not RuntimeDefault",
    );
    for shared in ["hostNetwork", "hostPID", "hostIPC"] {
        found.unless(pod.get(shared).is_none_or(|value| value == false), format!("uses {shared}"));
    }
    found.unless(pod["automountServiceAccountToken"] == false, "gets a token of the API server");
    found.unless(pod["serviceAccountName"].is_string(), "has no service account of its own");
    found.unless(
        pod["enableServiceLinks"] == false,
        "gets ORCHESTRATOR_… variables of Services, which are our settings",
    );
}

fn of_volumes(pod: &Value, object: &Value, found: &mut Findings) {
    for volume in list(&pod["volumes"]) {
        let kinds = volume.as_object().into_iter().flat_map(|fields| fields.keys());
        for kind in kinds.filter(|kind| *kind != "name") {
            found.unless(VOLUMES.contains(&kind.as_str()), format!("has a volume of kind {kind}"));
        }
        if let Some(folder) = volume.get("emptyDir") {
            found.unless(
                folder["sizeLimit"].is_string(),
                format!("emptyDir {} has no sizeLimit", volume["name"]),
            );
        }
    }
    found.unless(
        object["kind"] != "Deployment" || object.pointer("/spec/volumeClaimTemplates").is_none(),
        "a Deployment has claims of its own",
    );
}

fn of_container(container: &Value, found: &mut Findings) {
    let security = &container["securityContext"];
    found.unless(security["allowPrivilegeEscalation"] == false, "may gain privileges");
    found.unless(security["readOnlyRootFilesystem"] == true, "may write into its image");
    let capabilities = &security["capabilities"];
    found.unless(
        list(&capabilities["drop"]).any(|name| name == "ALL") && capabilities.get("add").is_none(),
        "keeps capabilities",
    );
    found.unless(security.get("privileged").is_none_or(|value| value == false), "is privileged");
    found.unless(
        security.get("runAsUser").is_none() && security.get("runAsNonRoot").is_none(),
        "overrides the pod's user",
    );
    for port in list(&container["ports"]) {
        found.unless(port.get("hostPort").is_none(), "takes a port of the host");
    }
    found.unless(container.get("command").is_none(), "replaces the image's entry point");
}

fn of_resources(container: &Value, found: &mut Findings) {
    let of = |kind: &str, name: &str| container["resources"][kind][name].clone();
    found.unless(!of("requests", "cpu").is_null(), "requests no processor");
    let memory = of("requests", "memory");
    found.unless(
        !memory.is_null() && memory == of("limits", "memory"),
        "memory request and limit differ",
    );
}

fn of_probes(container: &Value, found: &mut Findings) {
    for (probe, service) in [
        ("startupProbe", "liveness"),
        ("livenessProbe", "liveness"),
        ("readinessProbe", "readiness"),
    ] {
        let grpc = &container[probe]["grpc"];
        found.unless(
            grpc["port"] == HEALTH_PORT && grpc["service"] == service,
            format!("{probe} does not ask for {service} at port {HEALTH_PORT}"),
        );
    }
    found.unless(
        arguments(container).any(|argument| argument.starts_with("--health=")),
        "serves no health port",
    );
}

fn of_mounts(container: &Value, pod: &Value, object: &Value, found: &mut Findings) {
    let claims = || list(&object["spec"]["volumeClaimTemplates"]);
    for mount in list(&container["volumeMounts"]) {
        let name = &mount["name"];
        let volume = list(&pod["volumes"]).find(|volume| volume["name"] == *name);
        let own = claims().any(|claim| claim["metadata"]["name"] == *name);
        found.unless(volume.is_some() || own, format!("mounts {name}, which is not there"));
        let writable = own || volume.is_some_and(|volume| volume.get("emptyDir").is_some());
        found.unless(
            writable || mount["readOnly"] == true,
            format!("mounts {name} so that it may be changed"),
        );
    }
    for root in arguments(container).filter_map(|argument| argument.strip_prefix("--data-root=")) {
        let folder = root.split_once('=').map_or("", |(_, folder)| folder);
        found.unless(
            list(&container["volumeMounts"]).any(|mount| mount["mountPath"] == folder),
            format!("data root {root} is not mounted"),
        );
    }
}

fn of_worker(container: &Value, pod: &Value, found: &mut Findings) {
    if arguments(container).next() != Some("worker") {
        return;
    }
    let name = list(&container["env"]).find(|variable| variable["name"] == "ORCHESTRATOR_NAME");
    found.unless(
        name.is_some_and(|name| {
            name.pointer("/valueFrom/fieldRef/fieldPath")
                .is_some_and(|path| path == "metadata.name")
        }),
        "two pods would have one name",
    );
    let value = |flag: &str| arguments(container).find_map(|argument| argument.strip_prefix(flag));
    let grace = value("--grace=").and_then(|time| time.strip_suffix(" s")?.parse::<u64>().ok());
    let until_killed = pod["terminationGracePeriodSeconds"].as_u64();
    found.unless(grace.is_some() && grace < until_killed, "is killed before it has drained");
    found.unless(
        value("--scratch=").is_some_and(|path| path.len() <= SCRATCH_LIMIT),
        "has a long scratch path, or none: sockets need a short one",
    );
    of_gpu(container, pod, found);
}

fn of_gpu(container: &Value, pod: &Value, found: &mut Findings) {
    let limits = container["resources"]["limits"].as_object();
    let gpus: Vec<_> = limits
        .into_iter()
        .flatten()
        .filter(|(name, _)| {
            name.starts_with("nvidia.com/") && !name.starts_with("nvidia.com/gpumem")
        })
        .collect();
    let processor = arguments(container).any(|argument| argument == "--device=cpu");
    found.unless(processor == gpus.is_empty(), "neither a processor nor a GPU alone");
    found.unless(gpus.iter().all(|(_, count)| **count == 1) && gpus.len() < 2, "more than one GPU");
    if !processor {
        found.unless(
            list(&pod["tolerations"]).any(|toleration| toleration["key"] == "nvidia.com/gpu"),
            "does not tolerate GPU nodes",
        );
        found.unless(
            arguments(container).any(|argument| argument == "--device=gpu"),
            "would compute on the processor where its GPU cannot be used",
        );
    }
    let shared = gpus.iter().any(|(name, _)| name.ends_with(".shared"));
    found.unless(
        !shared || arguments(container).any(|argument| argument.starts_with("--quota=")),
        "shares a GPU without a quota",
    );
}

pub(super) fn arguments(container: &Value) -> impl Iterator<Item = &str> {
    list(&container["args"]).filter_map(Value::as_str)
}
