//! The copies of images that `infra/deploy` puts into the account's own registry.

use std::os::unix::fs::symlink;

use driftless_tests::world::{dirs::Dirs, registry::Registry};

use super::*;

/// The programs that copy images.
const COPIERS: [&str; 2] = ["crane", "skopeo"];
const NEITHER: &str =
    "neither crane nor skopeo is on PATH, and one of them copies the images into this account's ECR; nothing was changed";
const COPIES: &str = "arn:aws:ecr:eu-central-2:123456789012:repository/driftless/copies/*";
const CLOSED: &str = "ImageRepositories does not let tasks pull from arn:aws:ecr:eu-central-2:123456789012:repository/";
/// The images, all with the tag `1`.
const IMAGES: [&str; 5] = ["pulumi", "base", "go", "runner", "forwarder"];

/// The ECR of another account, and a host with a similar name.
const OTHERS: &str = "444455556666.dkr.ecr.us-east-1.amazonaws.com";
const SIMILAR: &str = "444455556666.dkr.ecr.us-east-1.amazonaws.com.example";
/// In place of crane: `ASKED` has its calls. Real crane finds the login to each registry of ECR in
/// its settings, then does the call with another registry. `$DENIED` is a part of a call that the
/// registry denies.
const CRANE: &str = r#"echo "$@" >>ASKED
for word; do
  case $word in *.dkr.ecr.*)
    case $(REAL auth get "${word%%/*}" 2>/dev/null) in
    *'"Username":"AWS"'*) echo "login ${word%%/*}" >>ASKED ;;
    *) echo "no login" >&2; exit 1 ;;
    esac ;;
  esac
done
case "$*" in *"${DENIED:-nothing is denied}"*) echo "DENIED: not today" >&2; exit 1 ;; esac
exec REAL $(echo "$@" | sed 's!ECR!HOST/ecr!g; s!OTHERS!HOST!g; s!public.ecr.aws!HOST!g')"#;
/// In place of skopeo: as much of it as the scripts use, by crane. Its files have the logins to
/// registries of ECR.
const SKOPEO: &str = r#"echo "$@" >>ASKED
before= names=
for word; do
  case $before in --authfile | --src-authfile | --dest-authfile) logins=$word ;; esac
  case $word in docker://*.dkr.ecr.*) wanted=${word#docker://} wanted=${wanted%%/*} ;; esac
  case $word in docker://*) names="$names ${word#docker://}" ;; esac
  before=$word
done
[ -z "${wanted:-}" ] || grep -q "\"$wanted\": {\"auth\"" "$logins" || { echo "no login" >&2; exit 1; }
case $1 in inspect) set -- manifest $names ;; *) set -- copy $names ;; esac
exec REAL $(echo "$@" | sed 's!ECR!HOST/ecr!g; s!OTHERS!HOST!g; s!public.ecr.aws!HOST!g')"#;

/// A deployment of images of another registry. Amazon ECR Public, the account's ECR and that of
/// another account are that registry too: moto's ECR accepts no push.
struct Copying<'a> {
    tree: Tree<'a>,
    registry: Registry,
    /// The digests of the images.
    digests: BTreeMap<&'static str, String>,
    /// The host of the account's ECR.
    ecr: String,
    /// Without images.
    parameters: String,
    variables: Vec<(&'static str, String)>,
    /// The calls of crane or skopeo.
    asked: PathBuf,
}

/// A stand-in with the names of a test.
fn filled(text: &str, asked: &Path, real: &Path, [ecr, host]: [&str; 2]) -> String {
    let words = [("ASKED", &*asked.to_string_lossy()), ("REAL", &real.to_string_lossy()), ("ECR", ecr), ("HOST", host)];
    words.into_iter().chain([("OTHERS", OTHERS)]).fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

impl<'a> Copying<'a> {
    async fn start(dirs: &'a Dirs, supervisor: &Supervisor, moto: &Moto) -> Result<Self> {
        let registry = Registry::start(dirs, supervisor).await?;
        let tree = Tree::copy(Aws::start(dirs, supervisor, moto, REGION).await?, "https://127.0.0.1:1/").await?;
        let artifacts = format!("{STACK}-artifacts-{ACCOUNT}-{REGION}");
        let place = format!("LocationConstraint={REGION}");
        tree.aws.run(&["s3api", "create-bucket", "--bucket", &artifacts, "--create-bucket-configuration", &place]).await?;
        let ecr = format!("{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com");
        let asked = tree.root.join("asked");
        tree.stand_in("crane", &filled(CRANE, &asked, &dirs.tool("crane")?, [&ecr, &registry.host]))?;
        // As a user of Amazon's helper has it; it stores no login.
        tree.stand_in("docker-credential-ecr-login", "echo 'not implemented' >&2; exit 1")?;
        let helpers = json!({ "credHelpers": { &*ecr: "ecr-login", OTHERS: "ecr-login" } });
        fs::create_dir(tree.root.join("docker"))?;
        fs::write(tree.root.join("docker/config.json"), helpers.to_string())?;
        let mut digests = BTreeMap::new();
        for name in IMAGES {
            digests.insert(name, registry.push(name, "1", &[("name", name)]).await?);
        }
        let [subnets, groups] = network(tree.aws.dirs, &tree.aws.cli, &tree.aws.endpoint).await?;
        let parameters = tree.spelled_out()?.into_iter().filter(|(name, _)| name != "RuntimeImages");
        let parameters: Vec<_> = parameters.map(|(name, value)| format!("{name}={value}")).collect();
        let variables = vec![
            ("ARCHITECTURE", "x86_64".to_owned()),
            ("ARTIFACTS_BUCKET", artifacts),
            ("BUILD", "no".to_owned()),
            ("CLUSTERS", "prod".to_owned()),
            ("DOCKER_CONFIG", tree.root.join("docker").display().to_string()),
            ("KUBECONFIG_FILE", tree.root.join("clusters.yaml").display().to_string()),
            ("SUBNETS", subnets),
            ("SECURITY_GROUPS", groups),
            ("RUNNER_IMAGE", format!("{}/runner:1@{}", registry.host, digests["runner"])),
            ("FORWARDER_IMAGE", format!("{}/forwarder:1", registry.host)),
        ];
        Ok(Self { tree, registry, digests, ecr, parameters: parameters.join(" "), variables, asked })
    }

    /// The images of runs: in Amazon ECR Public, in the ECR of another account, and in a registry.
    fn images(&self) -> String {
        format!("DefaultImage=public.ecr.aws/pulumi:1 RuntimeImages=yaml={OTHERS}/base:1,go={}/go:1", self.registry.host)
    }

    /// Runs `infra/deploy` with these images of runs. Returns its output, and the number of copies.
    async fn deploy(&self, images: &str, changed: &[(&str, &str)]) -> Result<(i32, String, usize)> {
        let _ = fs::remove_file(&self.asked);
        // infra/deploy reads the first one of a name.
        let parameters = format!("{images} {}", self.parameters);
        let given = self.variables.iter().map(|(name, value)| (*name, value.as_str())).chain([("PARAMETERS", &*parameters)]);
        let given: Vec<_> = given.chain(changed.iter().copied()).collect();
        let (code, said) = self.tree.script("deploy", &given).await?;
        let asked = fs::read_to_string(&self.asked).unwrap_or_default();
        Ok((code, said, asked.lines().filter(|line| line.starts_with("copy ")).count()))
    }

    /// The same, if the stack is deployed. moto shows no outputs of a change set.
    async fn deployed(&self, images: &str, changed: &[(&str, &str)]) -> Result<(String, usize)> {
        let (code, said, copies) = self.deploy(images, changed).await?;
        ensure!(code == 1 && said.contains(NO_OUTPUTS), "{said}");
        Ok((said, copies))
    }

    /// Checks that runs use these copies, of which the first is the default and the next is the
    /// runner.
    async fn uses(&self, copies: &[(&str, &str)]) -> Result<()> {
        for ((name, image), parameter) in copies.iter().zip(["DefaultImage", "RunnerImage", "RuntimeImages", "RuntimeImages"]) {
            let copy = format!("{}/{STACK}/copies/{name}@{}", self.ecr, self.digests[image]);
            let given = self.parameter(parameter).await?;
            ensure!(given.contains(&copy), "{parameter} is {given}, without {copy}");
        }
        Ok(())
    }

    /// moto prints a list in Python's form.
    async fn parameter(&self, name: &str) -> Result<String> {
        let all = self.tree.described("Parameters").await?;
        let given = list(&all).iter().find(|one| one["ParameterKey"] == name).context("a parameter")?;
        Ok(given["ParameterValue"].as_str().unwrap_or_default().to_owned())
    }

    async fn repositories(&self) -> Result<Vec<Value>> {
        let all: Value = serde_json::from_str(&self.tree.aws.run(&["ecr", "describe-repositories"]).await?)?;
        Ok(list(&all["repositories"]).to_vec())
    }

    /// A `PATH` with all programs but those that copy images.
    fn without_copier(&self) -> Result<String> {
        let folder = self.tree.root.join("without-copier");
        fs::create_dir(&folder)?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = [self.tree.root.join("bin"), self.tree.aws.dirs.tools().to_owned()];
        for place in places.into_iter().chain(std::env::split_paths(&path)) {
            for program in fs::read_dir(place).into_iter().flatten() {
                let program = program?;
                let (name, link) = (program.file_name(), folder.join(program.file_name()));
                if COPIERS.iter().all(|copier| name != *copier) && link.symlink_metadata().is_err() {
                    symlink(program.path(), link)?;
                }
            }
        }
        Ok(folder.display().to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_copied_by_default_and_only_once() -> Result<()> {
    let dirs = stage("copies")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let copying = Copying::start(&dirs, &supervisor, &moto).await?;
    let images = copying.images();
    for (copies, there) in [(5, 0), (0, 5)] {
        let (said, copied) = copying.deployed(&images, &[]).await?;
        assert_eq!((copied, said.matches(": already copied\n").count()), (copies, there), "{said}");
    }
    copying.uses(&[("pulumi", "pulumi"), ("runner", "runner"), ("pulumi-yaml", "base"), ("pulumi-go", "go")]).await?;
    // Repositories that were there get changed tags.
    let tagged = [("TAGS", "Team=other")];
    copying.deployed(&images, &tagged).await?;
    let arn = format!("arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{STACK}/copies/pulumi-go");
    let tags = copying.tree.aws.run(&["ecr", "list-tags-for-resource", "--resource-arn", &arn]).await?;
    assert_eq!(serde_json::from_str::<Value>(&tags)?["tags"], json!([{ "Key": "Team", "Value": "other" }]));
    // The runner as a parameter of the template.
    let runner = format!("{images} RunnerImage={}/runner:1", copying.registry.host);
    copying.deployed(&runner, &[("RUNNER_IMAGE", "")]).await?;
    copying.uses(&[("pulumi", "pulumi"), ("runner", "runner")]).await?;
    // Only copies are left, and tasks may not pull them.
    let copy = format!("{}/{STACK}/copies/pulumi@{}", copying.ecr, copying.digests["pulumi"]);
    let closed =
        format!("DefaultImage={copy} RuntimeImages= ImageRepositories=arn:aws:ecr:us-east-1:123456789012:repository/mine/*");
    let (code, said, _) = copying.deploy(&closed, &[("RUNNER_IMAGE", &copy), ("FORWARDER_IMAGE", &copy)]).await?;
    assert!(code == 1 && said.contains(&format!("{CLOSED}driftless/copies/*; nothing was changed\n")), "{said}");
    // Whether a copy is there is not known.
    let denied = format!("digest {}/{STACK}/copies/pulumi@", copying.ecr);
    let (code, said, copied) = copying.deploy(&images, &[("DENIED", &denied)]).await?;
    let words = format!("cannot read whether {copy} exists: DENIED: not today; nothing was changed\n  allow pulls from ");
    assert!(code == 1 && copied == 0 && said.contains(&words), "{words:?} is not in: {said}");
    let repositories = copying.repositories().await?;
    assert_eq!(repositories.len(), 5);
    for repository in repositories {
        assert_eq!(repository["imageTagMutability"], "IMMUTABLE");
        assert_eq!(repository["imageScanningConfiguration"]["scanOnPush"], true);
    }
    let (said, copied) = copying.deployed(&images, &[("CLUSTERS", "prod,lab")]).await?;
    assert!(copied == 0 && said.contains("/forwarder:1: not copied, because the nodes of clusters outside EKS "), "{said}");

    // A repository that the installation did not create stays.
    let tree = &copying.tree;
    tree.aws.run(&["ecr", "create-repository", "--repository-name", "mine"]).await?;
    let (code, said) = tree.script("undeploy", &[]).await?;
    assert!(code == 1 && said.contains("  repository driftless/copies/pulumi of ECR: with all its images\n"), "{said}");
    let (code, said) = tree.script("undeploy", &[("CONFIRM", STACK)]).await?;
    assert_eq!(code, 0, "{said}");
    let left = copying.repositories().await?;
    assert_eq!(left.iter().map(|repository| &repository["repositoryName"]).collect::<Vec<_>>(), ["mine"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn images_stay_in_their_registries_on_request_until_an_upgrade() -> Result<()> {
    let dirs = stage("no-copies")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let copying = Copying::start(&dirs, &supervisor, &moto).await?;
    let (aws, host, digests) = (&copying.tree.aws, &copying.registry.host, &copying.digests);
    // Tags become digests where the registry has them; so do those of the account's own
    // repositories.
    aws.run(&["ecr", "create-repository", "--repository-name", "mine/python"]).await?;
    let manifest =
        json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": [] }).to_string();
    let put = ["ecr", "put-image", "--repository-name", "mine/python", "--image-tag", "1", "--image-manifest", &manifest];
    let put: Value = serde_json::from_str(&aws.run(&put).await?)?;
    let own = format!("python={}/mine/python", copying.ecr);
    let pinned = format!("{own}@{}", put["image"]["imageId"]["imageDigest"].as_str().context("a digest")?);
    let absent = format!("{host}/absent:1");
    let admitted =
        ["444455556666:repository/base", "123456789012:repository/mine/*", "123456789012:repository/driftless/copies/*"];
    let admitted = format!(" ImageRepositories={}", admitted.map(|name| format!("arn:aws:ecr:*:{name}")).join(","));
    let images = copying.images().replace(&format!("go={host}/go:1"), &format!("go={absent},{own}:1")) + &admitted;
    let (said, copied) = copying.deployed(&images, &[("COPY_IMAGES", "no")]).await?;
    assert_eq!((copied, copying.repositories().await?.len()), (0, 1), "{said}");
    for line in [
        &format!("warning: image {absent}: keeps its tag, because its digest cannot be read: "),
        "COPY_IMAGES=no: these images stay in other registries, which limit pulls: ",
        "\n  Amazon ECR Public: ten pulls a second by tasks on AWS, which AWS does not raise\n",
    ] {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
    let default = format!("public.ecr.aws/pulumi@{}", digests["pulumi"]);
    assert_eq!(copying.parameter("DefaultImage").await?, default);
    assert_eq!(copying.parameter("RunnerImage").await?, format!("{host}/runner:1@{}", digests["runner"]));
    let images = copying.parameter("RuntimeImages").await?;
    for image in [format!("yaml={OTHERS}/base@{}", digests["base"]), format!("go={absent}"), pinned.clone()] {
        assert!(images.contains(&image), "{image} is not in {images}");
    }

    // The stack has the other images.
    let images = format!("RuntimeImages=yaml={host}/base@{},{pinned}{admitted}", digests["base"]);
    let path = copying.without_copier()?;
    let skopeo = filled(SKOPEO, &copying.asked, &dirs.tool("crane")?, [&copying.ecr, host]);
    copying.tree.stand_in("skopeo", &skopeo)?;
    fs::rename(copying.tree.root.join("bin/skopeo"), Path::new(&path).join("skopeo"))?;
    let (said, copied) = copying.deployed(&images, &[("RUNNER_IMAGE", ""), ("FORWARDER_IMAGE", ""), ("PATH", &path)]).await?;
    assert_eq!(copied, 3, "{said}");
    copying.uses(&[("pulumi", "pulumi"), ("runner", "runner"), ("pulumi-yaml", "base")]).await?;
    assert!(copying.parameter("RuntimeImages").await?.contains(&pinned), "an image of the account stays where it is");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_cannot_be_made_are_refused_before_any_change() -> Result<()> {
    let dirs = stage("refused-copies")?;
    let supervisor = Supervisor::default();
    let moto = Moto::start(&dirs, &supervisor).await?;
    let copying = Copying::start(&dirs, &supervisor, &moto).await?;
    let (images, bare) = (copying.images(), copying.without_copier()?);
    let other = format!("{images} ImageRepositories=arn:aws:ecr:*:{ACCOUNT}:repository/mine/*");
    let added = format!("ImageRepositories=arn:aws:ecr:*:{ACCOUNT}:repository/mine/*,{COPIES}\n");
    let absent = images.replace("/go:1", "/go:2");
    let similar = images.replace("public.ecr.aws/pulumi:1", &format!("{SIMILAR}/pulumi:1"));
    let elsewhere = images.replace("public.ecr.aws/pulumi:1", &format!("{}/team/pulumi:1", copying.ecr));
    let before = inventory(&copying.tree.aws).await?;
    for (images, changed, parts) in [
        (&images, ("PATH", &*bare), [NEITHER, "\n  install crane: tests/tools/install registry, or ", "\n  COPY_IMAGES=no "]),
        (&other, ("COPY_IMAGES", ""), [&format!("{CLOSED}driftless/copies/*; nothing was changed\n"), &added, "COPY_IMAGES=no"]),
        (
            &elsewhere,
            ("COPY_IMAGES", ""),
            [&format!("{CLOSED}team/pulumi; nothing was changed\n"), "repository/team/pulumi\n", "CHECK=no"],
        ),
        (&absent, ("CHECK", "no"), ["cannot read image ", "nothing was changed", "COPY_IMAGES=no"]),
        (
            &similar,
            ("CHECK", "no"),
            ["cannot read image ", ": no login; nothing was changed", "log in to its registry with crane"],
        ),
        (
            &images,
            ("DENIED", OTHERS),
            ["/base:1: DENIED: not today; nothing was changed", "allow ecr:BatchGetImage", "COPY_IMAGES=no"],
        ),
        (
            &images,
            ("DENIED", "initiate-layer-upload"),
            ["cannot push to ", "nothing was changed", "allow pushes to driftless/copies/*"],
        ),
        (
            &images,
            ("DENIED", "get-login-password"),
            ["cannot log in to ", "nothing was changed", "allow ecr:GetAuthorizationToken"],
        ),
        (&images, ("COPY_IMAGES", "true"), ["COPY_IMAGES=true is not supported", "use yes or no", ""]),
    ] {
        let (code, said, copied) = copying.deploy(images, &[changed]).await?;
        assert!(code == 1 && copied == 0, "{changed:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{changed:?}: {part:?} is not in: {said}");
        }
        let asked = fs::read_to_string(&copying.asked).unwrap_or_default();
        assert!(!asked.contains(&format!("login {SIMILAR}")), "AWS's token is only for AWS: {asked}");
    }
    assert_eq!((inventory(&copying.tree.aws).await?, copying.repositories().await?.len()), (before, 0));

    // Images of the account need no copy.
    let own = format!("{}/mine@{}", copying.ecr, copying.digests["base"]);
    let images = format!("DefaultImage={own} RuntimeImages=yaml={own} ImageRepositories=arn:aws:ecr:*:{ACCOUNT}:repository/mine");
    let changed = [("PATH", &*bare), ("RUNNER_IMAGE", &*own), ("FORWARDER_IMAGE", "")];
    copying.deployed(&images, &changed).await.map(drop)
}
