//! Which content becomes a tree, which is refused, and what a fetch costs.

use super::*;

#[tokio::test]
async fn a_branch_becomes_a_tree_with_modes_and_links() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let site = Site::new();
    site.write("deep/down/file", "content");
    site.write("run.sh", "#!/bin/sh\n");
    std::fs::set_permissions(site.work().join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("deep/down/file", site.work().join("link")).unwrap();
    let commit = site.commit("more");
    let (_, url) = site.web(&[]).await;
    let (revision, manifest) = site.fetched(json!({ "projectRepo": url, "branch": "main" })).await;
    assert_eq!(revision, commit);
    let files: Vec<_> = manifest.files.iter().map(|(path, file)| (path.as_str(), file.size, file.executable)).collect();
    assert_eq!(files, [("Pulumi.yaml", 25, false), ("deep/down/file", 7, false), ("run.sh", 10, true)]);
    assert_eq!(manifest.links["link"], "deep/down/file");
    let digest = site.poll(json!({ "projectRepo": url, "branch": "main" })).await.artifact.unwrap().digest;
    assert_eq!(digest.as_str(), format!("sha1:{}", run(&site.work(), &["rev-parse", "HEAD^{tree}"])));
    let pack = &site.world.objects()[&format!("{}pack", keys::tree(&Site::key(), &digest))];
    assert_eq!(pack, b"name: shop\nruntime: yaml\ncontent#!/bin/sh\n");
}

#[tokio::test]
async fn a_branch_a_tag_a_full_ref_and_a_commit_are_understood() {
    let site = Site::new();
    let work = site.work();
    let first = run(&work, &["rev-parse", "HEAD"]);
    run(&work, &["tag", "light"]);
    run(&work, &["tag", "--annotate", "--message", "x", "annotated"]);
    run(&work, &["branch", "same"]);
    site.write("second", "2");
    let second = site.commit("second");
    run(&work, &["tag", "same"]);
    run(&work, &["branch", "feature/x"]);
    site.push();
    let (_, url) = site.web(&[]).await;
    for (field, value, commit) in [
        ("branch", "main", &second),
        ("branch", "refs/heads/main", &second),
        ("branch", "feature/x", &second),
        ("branch", "light", &first),
        ("branch", "annotated", &first),
        ("branch", "refs/tags/annotated", &first),
        ("branch", "refs/tags/light", &first),
        ("branch", "tags/same", &second),
        ("branch", "HEAD", &second),
        ("commit", "annotated", &first),
        ("commit", "main", &second),
        ("commit", &first, &first),
        // A branch takes precedence over a tag of the same name.
        ("branch", "same", &first),
    ] {
        let (revision, manifest) = site.fetched(json!({ "projectRepo": url, field: value })).await;
        assert_eq!(&revision, commit, "{field} {value}");
        assert_eq!(manifest.files.contains_key("second"), *commit == second, "{field} {value}");
    }
}

#[tokio::test]
async fn missing_ref_is_named_and_retried() {
    let site = Site::new();
    let first = run(&site.work(), &["rev-parse", "HEAD"]);
    run(&site.work(), &["tag", "--annotate", "--message", "x", "annotated"]);
    site.push();
    let tag = run(&site.work(), &["rev-parse", "annotated"]);
    let (_, url) = site.web(&[]).await;
    for (field, value, words, terminal) in [
        ("branch", "gone", "branch or tag \"gone\" not found in the repository (spec.branch)", false),
        // A prefix of a ref does not match the ref.
        ("branch", "mai", "branch or tag \"mai\" not found", false),
        ("commit", &first[..12], "all 40 digits", true),
        ("commit", "0123456789abcdef0123456789abcdef01234567", "commit 0123456789abcdef", false),
        ("commit", &tag, "is not a commit", false),
        ("branch", "a b", "spec.branch is \"a b\"", true),
    ] {
        let (message, is_terminal) = site.refused(json!({ "projectRepo": url, field: value })).await;
        assert!(message.contains(words), "{value}: {message}");
        assert_eq!(is_terminal, terminal, "{value}: {message}");
    }
    let other = url.replace("shop.git", "other.git");
    let (message, terminal) = site.refused(json!({ "projectRepo": other, "branch": "main" })).await;
    assert!(message.contains("repository not found, or it is private") && !terminal, "{message}");
}

#[tokio::test]
async fn unchanged_branch_costs_one_ls_refs_and_no_pack() {
    let site = Site::new();
    let (web, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    let (before, _) = site.fetched(spec.clone()).await;
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
    assert_eq!(site.fetched(spec.clone()).await.0, before);
    assert_eq!(web.requests(), ["info/refs", "ls-refs"]);
    // Another spec is not answered from the last fetch.
    assert_eq!(site.fetched(json!({ "projectRepo": url, "branch": "refs/heads/main" })).await.0, before);
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
    site.write("new", "");
    let after = site.commit("new");
    assert_eq!(site.fetched(spec).await.0, after);
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
    // A commit never changes.
    let spec = json!({ "projectRepo": url, "commit": after });
    site.fetched(spec.clone()).await;
    assert_eq!(web.requests(), ["info/refs", "fetch"]);
    site.fetched(spec).await;
    assert_eq!(web.requests(), [""; 0]);
}

#[tokio::test]
async fn expired_tree_is_fetched_again() {
    let site = Site::new();
    let (web, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    let outcome = site.poll(spec.clone()).await;
    let manifest = format!("{}manifest", keys::tree(&Site::key(), &outcome.artifact.unwrap().digest));
    driftless_aws::Objects::delete(&site.world, &manifest).await.unwrap();
    web.requests();
    site.fetched(spec).await;
    assert_eq!(web.requests(), ["info/refs", "ls-refs", "fetch"]);
}

#[tokio::test]
async fn a_submodule_and_a_pointer_of_lfs_are_refused_by_name() {
    let site = Site::new();
    let (_, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    site.write("assets/big", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n");
    let commit = site.commit("lfs");
    let (message, terminal) = site.refused(spec.clone()).await;
    assert!(message.starts_with("\"assets/big\" is stored in Git LFS"), "{message}");
    assert!(!terminal, "a push mends it");
    assert!(site.refused(json!({ "projectRepo": url, "commit": commit })).await.1, "a commit stays what it is");
    std::fs::remove_dir_all(site.work().join("assets")).unwrap();
    run(&site.work(), &["submodule", "--quiet", "add", "../shop.git", "modules/shop"]);
    site.commit("submodule");
    let (message, terminal) = site.refused(spec).await;
    assert!(message.starts_with("\"modules/shop\" is a submodule"), "{message}");
    assert!(!terminal, "a push mends it");
}

#[tokio::test]
async fn submodule_and_lfs_pointer_outside_the_project_are_kept() {
    let site = Site::new();
    let (_, url) = site.web(&[]).await;
    site.write("app/Pulumi.yaml", "name: app\nruntime: yaml\n");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    site.write("assets/big", pointer);
    run(&site.work(), &["submodule", "--quiet", "add", "../shop.git", "modules/shop"]);
    site.commit("both");
    let spec = |dir: &str| json!({ "projectRepo": url, "branch": "main", "repoDir": dir });
    let (_, manifest) = site.fetched(spec("app")).await;
    assert_eq!(manifest.files["assets/big"].size, pointer.len() as u64);
    assert!(manifest.digest_of("modules").is_none() && manifest.digest_of("app").is_some());
    for (dir, words) in [
        ("assets", "\"assets/big\" is stored in Git LFS"),
        ("modules", "\"modules/shop\" is a submodule"),
        ("modules/shop/prod", "\"modules/shop\" is a submodule"),
    ] {
        let (message, _) = site.refused(spec(dir)).await;
        assert!(message.starts_with(words), "{message}");
    }
}

#[tokio::test]
async fn escaping_or_too_large_content_is_refused() {
    let mut site = Site::new();
    let (_, url) = site.web(&[]).await;
    let spec = json!({ "projectRepo": url, "branch": "main" });
    std::os::unix::fs::symlink("../../etc/passwd", site.work().join("link")).unwrap();
    site.commit("link");
    assert_eq!(site.refused(spec.clone()).await.0, "the link \"link\" leads outside of the tree");
    std::fs::remove_file(site.work().join("link")).unwrap();
    // Incompressible for zlib.
    let noise: Vec<u8> = (0..40_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).rotate_left(7).to_le_bytes()).collect();
    site.write("noise", noise);
    site.commit("noise");
    site.settings.limits.bytes = 1000;
    assert_eq!(
        site.refused(spec.clone()).await.0,
        "content is too large, the maximum is 1000 bytes; source is not fetched; raise UnpackMaxBytes"
    );
    site.settings.git.max_pack_bytes = 50_000;
    assert_eq!(
        site.refused(spec).await.0,
        "git server sent more than 50000 bytes for one commit; repository is not fetched; raise MaxArchiveBytes, or use a smaller repository"
    );
}

#[tokio::test]
async fn tree_that_repeats_itself_is_not_walked_to_the_end() {
    use std::io::Write as _;
    let mut site = Site::new();
    site.settings.limits.entries = 1000;
    let (_, url) = site.web(&[]).await;
    let mut tree = run(&site.work(), &["rev-parse", "HEAD^{tree}"]);
    for _ in 0..12 {
        let mut mktree = Command::new("git")
            .current_dir(site.work())
            .arg("mktree")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let entries = (0..10).map(|n| format!("040000 tree {tree}\t{n}\n")).collect::<Vec<_>>().concat();
        mktree.stdin.take().unwrap().write_all(entries.as_bytes()).unwrap();
        tree = String::from_utf8(mktree.wait_with_output().unwrap().stdout).unwrap().trim().to_owned();
    }
    let commit = run(&site.work(), &["commit-tree", "-m", "bomb", &tree]);
    run(&site.work(), &["update-ref", "refs/heads/main", &commit]);
    site.push();
    let (message, _) = site.refused(json!({ "projectRepo": url, "branch": "main" })).await;
    assert_eq!(message, "too many files and directories, the maximum is 1000; source is not fetched; raise UnpackMaxEntries");
}

#[tokio::test]
async fn a_server_with_the_old_protocol_is_understood() {
    let site = Site::new();
    run(&site.work(), &["tag", "--annotate", "--message", "x", "annotated"]);
    site.write("second", "2");
    let second = site.commit("second");
    let (web, address) = Web { root: site.root().into(), old: true, ..Web::default() }.serve().await;
    let spec = |field: &str, value: &str| json!({ "projectRepo": format!("http://{address}/shop.git"), field: value });
    assert_eq!(site.fetched(spec("branch", "main")).await.0, second);
    assert_eq!(web.requests(), ["info/refs", "other"]);
    site.fetched(spec("branch", "main")).await;
    assert_eq!(web.requests(), ["info/refs"]);
    assert_eq!(site.fetched(spec("branch", "annotated")).await.1.files.len(), 1);
    assert_eq!(site.fetched(spec("commit", &second)).await.0, second);
}

#[tokio::test]
async fn repositories_without_a_commit_or_with_other_ids_are_refused() {
    let site = Site::new();
    run(site.root(), &["init", "--quiet", "--bare", "empty.git"]);
    run(site.root(), &["init", "--quiet", "--bare", "--object-format", "sha256", "sha256.git"]);
    let (_, url) = site.web(&[]).await;
    for (name, words) in [("empty", "branch or tag \"main\" not found"), ("sha256", "SHA-256 format")] {
        let url = url.replace("shop", name);
        let (message, _) = site.refused(json!({ "projectRepo": url, "branch": "main" })).await;
        assert!(message.contains(words), "{message}");
    }
}
