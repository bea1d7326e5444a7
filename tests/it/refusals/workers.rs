//! Paths that lead out of a worker's data roots. The client may read them; the worker may not.

use std::{fs, os::unix::fs::symlink};

use orchestrator_tests::{
    cluster::{Cluster, Setup},
    data,
};

use super::{IMAGES, Rows, Seen, evaluation, good_image, model_with};

pub(super) fn attack(rows: &mut Rows) {
    let mut cluster = Cluster::start(Setup::default());
    let home = cluster.home().path().to_owned();
    let root = home.join("root");
    fs::create_dir_all(&root).unwrap();
    fs::create_dir_all(home.join("outside")).unwrap();
    let model = data().join("models/tiny-clip");
    let roots = [format!("root={}", root.display()), format!("models={}", model.display())];
    cluster.start_bare_worker("w", &["--data-root", &roots[0], "--data-root", &roots[1]]);
    let worker = cluster.worker_pid("w");
    let gray = data().join("edge/gray.jpg");
    let model_text = model.display().to_string();

    good_image(cluster.home());
    fs::copy(&gray, home.join("outside/a.jpg")).unwrap();
    fs::create_dir_all(root.join("linked/cats")).unwrap();
    symlink(home.join("outside/a.jpg"), root.join("linked/cats/a.jpg")).unwrap();
    symlink(home.join("outside"), root.join("out")).unwrap();
    let line = |image: &str| format!("{{\"image\": \"{image}\", \"caption\": \"x\"}}\n");
    fs::write(root.join("climbs.jsonl"), line("../outside/a.jpg")).unwrap();
    fs::write(root.join("names.jsonl"), line(home.join("outside/a.jpg").to_str().unwrap()))
        .unwrap();
    // Config and tokenizer are inside; the weights are a link.
    model_with(cluster.home(), "none", b"");
    fs::rename(home.join("model"), root.join("model")).unwrap();
    fs::rename(root.join("model/model.safetensors"), home.join("outside/w")).unwrap();
    symlink(home.join("outside/w"), root.join("model/model.safetensors")).unwrap();

    let captions = |name: &str| format!("{{format: captions, path: '{}/{name}'}}", root.display());
    let folder = |path: &str| format!("{{format: imagefolder, path: '{}/{path}'}}", home.display());
    let linked = root.join("model").display().to_string();
    let cases = [
        ("dataset outside", "an absolute path", evaluation(&model_text, IMAGES)),
        (
            "dataset behind a link",
            "`root/out` leads out",
            evaluation(&model_text, &folder("root/out/..")),
        ),
        (
            "dataset that climbs out",
            "`root/../images`",
            evaluation(&model_text, &folder("root/../images")),
        ),
        (
            "picture behind a link",
            "a link in a class folder",
            evaluation(&model_text, &folder("root/linked")),
        ),
        (
            "picture that climbs out",
            "`../outside/a.jpg` in captions",
            evaluation(&model_text, &captions("climbs.jsonl")),
        ),
        (
            "picture by its full path",
            "an absolute path in captions",
            evaluation(&model_text, &captions("names.jsonl")),
        ),
        (
            "weights behind a link",
            "`model.safetensors` is a link out of the root",
            evaluation(&linked, &captions("good.jsonl")),
        ),
    ];
    fs::copy(&gray, root.join("good.jpg")).unwrap();
    fs::write(root.join("good.jsonl"), line("good.jpg")).unwrap();
    let mut seen = Vec::new();
    for (attack, made, text) in cases {
        let file = cluster.home().write("attack.yaml", text);
        let outcome = cluster.run(&["submit", file.to_str().unwrap()]);
        seen.push((attack, made, Seen::with(cluster.home(), &outcome, "given up")));
    }
    // The same worker, the same executor's folder, and a sound run.
    let sound = evaluation(&model_text, &captions("good.jsonl"));
    let sound = cluster.home().write("sound.yaml", sound);
    let outcome = cluster.run(&["submit", sound.to_str().unwrap()]);
    assert_eq!((outcome.code, cluster.worker_pid("w")), (Some(0), worker), "{outcome:#?}");
    for (attack, made, seen) in seen {
        rows.add(attack, made, &seen.and("the same worker completes a sound run"));
    }
}
