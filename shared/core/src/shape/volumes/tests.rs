use serde_json::json;

use super::*;
use crate::shape::{DefaultSize, mount_path::IRSA, testing::WorkspaceSpec};

fn workspace(volume: &Value, mount: &Value, init: &Value) -> WorkspaceSpec {
    serde_json::from_value(json!({ "podTemplate": { "spec": {
        "volumes": [volume],
        "containers": [{ "name": "pulumi", "volumeMounts": mount }],
        "initContainers": [{ "name": "a", "volumeMounts": init }],
    } } }))
    .unwrap()
}

fn mount(path: &str) -> Value {
    json!([{ "name": "v", "mountPath": path, "readOnly": true }])
}

fn object(name: &str, items: &[(&str, &str, Option<u32>)], optional: bool) -> MountedObject {
    let item =
        |(key, path, mode): &(&str, &str, Option<u32>)| KeyToPath { key: (*key).into(), path: (*path).into(), mode: *mode };
    MountedObject { name: name.into(), items: items.iter().map(item).collect(), optional }
}

#[test]
fn secrets_config_maps_and_tokens_are_files_of_the_container_pulumi() {
    let secret = |mode| (mode, FileSource::Secret(object("db", &[], false)));
    for (volume, expected) in [
        (json!({ "secret": { "secretName": "db" } }), vec![secret(0o644)]),
        (json!({ "secret": { "secretName": "db", "defaultMode": 256 } }), vec![secret(0o400)]),
        (
            json!({ "configMap": { "name": "ca", "items": [{ "key": "k", "path": "d/f", "mode": 292 }], "optional": true } }),
            vec![(0o644, FileSource::ConfigMap(object("ca", &[("k", "d/f", Some(0o444))], true)))],
        ),
        (
            json!({ "projected": { "defaultMode": 288, "sources": [
                { "secret": { "name": "db" } },
                { "serviceAccountToken": { "audience": "vault", "path": "token", "expirationSeconds": 600 } },
                { "serviceAccountToken": { "path": "own" } },
            ] } }),
            vec![
                secret(0o440),
                (0o440, FileSource::Token { audience: Some("vault".into()), path: "token".into() }),
                (0o440, FileSource::Token { audience: None, path: "own".into() }),
            ],
        ),
    ] {
        let volume = merge(json!({ "name": "v" }), &volume);
        for path in ["/etc/db", "/var/run/secrets/db", "/share/db/"] {
            let spec = workspace(&volume, &mount(path), &Value::Null);
            let path = path.trim_end_matches('/');
            let files = MountedFiles { path: path.into(), sub_path: None, sources: expected.clone().into() };
            assert_eq!(spec.mounted_files("spec"), Ok(vec![files]), "{volume}");
            let own = (path == "/etc/db").then(|| Mount { volume: "v".into(), path: path.into() });
            assert_eq!(spec.shape("spec", DefaultSize::default()).unwrap().mounts, Vec::from_iter(own), "{path}");
        }
        let file = if volume["configMap"].is_null() { "f" } else { "d/f" };
        let alone = json!([{ "name": "v", "mountPath": "/etc/db/f", "subPath": file }]);
        let spec = workspace(&volume, &alone, &Value::Null);
        assert_eq!(spec.shape("spec", DefaultSize::default()).unwrap().mounts, []);
        let files = spec.mounted_files("spec").unwrap();
        assert_eq!(files[0].place(file), Some("/etc/db/f".into()));
        assert_eq!(files[0].place("g"), None);
    }
}

#[test]
fn sub_path_is_a_file_or_a_directory_of_one_of_the_sources() {
    let secret = json!({ "secret": { "name": "s", "items": [{ "key": "k", "path": "d/f" }] } });
    let token = json!({ "serviceAccountToken": { "audience": "vault", "path": "t" } });
    let volume = json!({ "name": "v", "projected": { "sources": [secret, token] } });
    let mounted = |sub_path: &str| {
        let mount = json!([{ "name": "v", "mountPath": "/m", "subPath": sub_path }]);
        workspace(&volume, &mount, &Value::Null).mounted_files("spec").map(|mut files| files.remove(0))
    };
    for (sub_path, file, path) in [("d/f", "d/f", "/m"), ("d", "d/f", "/m/f"), ("d/", "d/f", "/m/f"), ("t", "t", "/m")] {
        let mounted = mounted(sub_path).unwrap();
        assert_eq!(mounted.place(file).as_deref(), Some(path), "{sub_path}");
        assert_eq!(mounted.tokens().count(), usize::from(sub_path == "t"));
        assert_eq!((mounted.place("df"), mounted.place("tt")), (None, None));
    }
    for (sub_path, words) in [
        ("f", r#"volumeMounts[v].subPath is "f", which is not a file of the volume; write the path of one of its files"#),
        ("../t", r#"volumeMounts[v].subPath is "../t"; write a path relative to the volume"#),
    ] {
        let error = mounted(sub_path).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn field_of_a_volume_that_no_task_has_names_its_remedy() {
    let bundle = json!({ "name": "v", "projected": { "sources": [{ "clusterTrustBundle": { "path": "ca" } }] } });
    let secret = json!({ "name": "v", "secret": { "secretName": "db" } });
    let propagated = json!([{ "name": "v", "mountPath": "/v", "mountPropagation": "HostToContainer" }]);
    for (volume, mount, words) in [
        (
            &bundle,
            mount("/v"),
            "sources[0].clusterTrustBundle has no meaning on Fargate; use secret, configMap or serviceAccountToken",
        ),
        (&secret, propagated, "volumeMounts[v].mountPropagation has no meaning on Fargate; remove it"),
        (&secret, mount(IRSA), "set the annotation eks.amazonaws.com/role-arn of the ServiceAccount, and remove the mount"),
    ] {
        let error = workspace(volume, &mount, &Value::Null).mounted_files("spec").unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn mounts_of_a_container_have_a_maximum() {
    let mounts = |number| (0..number).map(|n| json!({ "name": "v", "mountPath": format!("/m{n}") })).collect::<Value>();
    let shape = |main: &Value, init: &Value| {
        workspace(&json!({ "name": "v" }), main, init).shape("spec", DefaultSize::default()).map(drop)
    };
    assert_eq!(shape(&mounts(64), &mounts(64)), Ok(()));
    for (main, init, container) in [(65, 1, "containers[pulumi]"), (1, 65, "initContainers[a]")] {
        let error = shape(&mounts(main), &mounts(init)).unwrap_err();
        assert!(error.contains(&format!("{container}.volumeMounts has 65 entries, the maximum is 64; combine")), "{error}");
    }
}

#[test]
fn empty_dir_is_a_volume_of_all_containers_that_mount_it() {
    for volume in [json!({ "emptyDir": {} }), json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } }), json!({})] {
        let volume = merge(json!({ "name": "v" }), &volume);
        let spec = workspace(
            &volume,
            &mount("/cache"),
            &json!([{ "name": "v", "mountPath": "/c" }, { "name": "share", "mountPath": "/share" }]),
        );
        let shape = spec.shape("spec", DefaultSize::default()).unwrap();
        let at = |path: &str| [Mount { volume: "v".into(), path: path.into() }];
        assert_eq!((&shape.mounts[..], &shape.init[0].mounts[..]), (&at("/cache")[..], &at("/c")[..]), "{volume}");
        assert_eq!(spec.mounted_files("spec"), Ok(vec![]));
    }
}

#[test]
fn unsupported_volume_is_refused_by_field() {
    let (empty, none) = (json!({ "name": "v" }), Value::Null);
    let secret = json!({ "name": "v", "secret": { "secretName": "db" } });
    let item = |path: &str| json!({ "name": "v", "secret": { "secretName": "db", "items": [{ "key": "k", "path": path }] } });
    let token = json!({ "serviceAccountToken": { "path": "t" } });
    for (volume, main, init, words) in [
        (
            json!({ "name": "v", "hostPath": { "path": "/" } }),
            &none,
            &none,
            "volumes[v].hostPath has no meaning on Fargate; use secret",
        ),
        (
            json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }),
            &none,
            &none,
            "volumes[v].persistentVolumeClaim has no meaning on Fargate; the disk of a task is deleted after its run; remove the volume",
        ),
        (
            json!({ "name": "v", "projected": { "sources": [{ "downwardAPI": {} }] } }),
            &none,
            &none,
            "volumes[v].projected.sources[0].downwardAPI has no meaning on Fargate; use secret, configMap or serviceAccountToken",
        ),
        (json!({ "name": "V" }), &none, &none, r#"volumes[V] has the name "V"; write at most 63"#),
        (
            json!({ "name": "share", "secret": { "secretName": "db" } }),
            &none,
            &none,
            "is reserved for the volume that all containers share; rename yours",
        ),
        (json!({ "name": "v", "secret": {} }), &none, &none, "volumes[v].secret has no name; write the name of the object"),
        (item("../x"), &none, &none, r#"volumes[v].secret.items[k].path is "../x"; write a path relative to the volume"#),
        (item("/x"), &none, &none, "items[k].path is"),
        (
            empty.clone(),
            &json!([{ "name": "w", "mountPath": "/w" }]),
            &none,
            "volumeMounts[w] refers to a volume that spec.podTemplate.spec.volumes does not have",
        ),
        (empty.clone(), &json!({ "name": "v" }), &none, "containers[pulumi]: invalid type: map, expected a sequence"),
        (empty.clone(), &json!([{ "name": "v", "mountPath": "v" }]), &none, r#"mountPath is "v"; write an absolute path"#),
        (empty.clone(), &mount("/a/../b"), &none, "write an absolute path"),
        (empty.clone(), &mount("/"), &none, "write an absolute path"),
        (empty.clone(), &mount("/a:b"), &none, "write an absolute path"),
        (
            empty.clone(),
            &mount("/var"),
            &none,
            r#"mountPath is "/var", which is reserved for files of the task; write another path"#,
        ),
        (secret.clone(), &mount("/share"), &none, "which is reserved for files of the task"),
        (secret.clone(), &mount("/share/source/x"), &none, "which is reserved for files of the task"),
        (
            secret.clone(),
            &mount("/var/run/secrets/kubernetes.io/serviceaccount"),
            &none,
            "which is reserved for files of the task",
        ),
        (secret.clone(), &mount("/driftless/x"), &none, "which is reserved for files of the task"),
        (empty.clone(), &mount("/share/x"), &none, "an emptyDir supports no subPath"),
        (empty.clone(), &json!([{ "name": "v", "mountPath": "/v", "subPath": "x" }]), &none, "an emptyDir supports no subPath"),
        (empty.clone(), &none, &mount("/share/x"), "initContainers[a].volumeMounts[v]: an emptyDir supports no subPath"),
        (
            secret.clone(),
            &none,
            &mount("/x"),
            r#"initContainers[a].volumeMounts[v]: the files of "v" are written after the init containers"#,
        ),
        (
            empty.clone(),
            &json!([{ "name": "v", "mountPath": "/v", "subPathExpr": "$(X)" }]),
            &none,
            "volumeMounts[v].subPathExpr has no meaning on Fargate; write the path in subPath",
        ),
        (
            empty,
            &none,
            &json!([{ "name": "share", "mountPath": "/s" }]),
            r#"the volume "share" is always mounted at /share; remove the mount"#,
        ),
        (
            json!({ "name": "v", "projected": { "sources": vec![token; 9] } }),
            &mount("/t"),
            &none,
            "volumeMounts has 9 tokens, the maximum is 8",
        ),
    ] {
        let spec = workspace(&volume, main, init);
        let error = spec.shape("spec", DefaultSize::default()).unwrap_err();
        assert!(error.starts_with("spec.podTemplate.spec.") && error.contains(words), "{error}\n{words}");
    }
    let twice = json!({ "podTemplate": { "spec": { "volumes": [{ "name": "v" }, { "name": "v" }] } } });
    let twice: WorkspaceSpec = serde_json::from_value(twice).unwrap();
    assert!(twice.shape("spec", DefaultSize::default()).unwrap_err().contains("two volumes with the name \"v\""));
}
