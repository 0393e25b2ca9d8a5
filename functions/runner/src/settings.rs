//! The settings file of a stack, `Pulumi.<stack>.yaml`, written as Pulumi would write it, without a
//! process for each part.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use driftless_contract::{Config, ConfigValue, PROJECT_FILES};
use serde_json::{Map, Value};

use crate::{
    arguments::{MAX_ARGUMENT_BYTES, structured, text},
    files,
    passphrase::Passphrase,
};

/// The backends that store no settings of a stack. Pulumi Cloud may, and then ignores the file.
const OWN_BACKENDS: [&str; 4] = ["file://", "s3://", "gs://", "azblob://"];

/// The maximum length of a key, in bytes. YAML has a limit of 1024 characters.
const MAX_KEY_BYTES: usize = 200;

/// The settings file of a stack.
pub(crate) struct SettingsFile {
    path: PathBuf,
    base: Base,
    /// The name of the project, to which a key without a namespace belongs.
    project: String,
    /// The written entries, as YAML. Pulumi may have added to the file.
    entries: BTreeMap<String, String>,
}

impl SettingsFile {
    /// Returns the file if the project, the stack and the backend leave no doubt that Pulumi would
    /// use it, and entries can be added to it.
    pub(crate) fn new(dir: &Path, stack: &str, environment: &BTreeMap<OsString, OsString>) -> Option<Self> {
        let backend = environment.get(OsStr::new("PULUMI_BACKEND_URL"))?.to_str()?;
        let stack = stack.rsplit('/').next().filter(|name| is_plain(name))?;
        let [file, others @ ..] = PROJECT_FILES;
        let is_absent =
            |name: &str| fs::symlink_metadata(dir.join(name)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if !OWN_BACKENDS.iter().any(|scheme| backend.starts_with(scheme)) || !others.iter().all(|other| is_absent(other)) {
            return None;
        }
        let name = format!("Pulumi.{stack}.yaml");
        let Ok(Value::Object(project)) = serde_saphyr::from_str(&fs::read_to_string(dir.join(file)).ok()?) else { return None };
        // Either field names another directory for the file.
        let is_elsewhere = project.contains_key("stackConfigDir") || project.get("config").is_some_and(Value::is_string);
        let own = project.get("name").and_then(Value::as_str).filter(|own| is_plain(own) && !is_elsewhere)?;
        let path = dir.join(&name);
        let base = if is_absent(&name) {
            Base::new("")
        } else {
            let is_file = fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
            Base::new(&fs::read_to_string(&path).ok().filter(|_| is_file)?)
        };
        Some(Self { path, base: base?, project: own.to_owned(), entries: BTreeMap::new() })
    }

    /// Writes the values that `config set-all` would write first, and returns the entries that are
    /// left to Pulumi: all of them if Pulumi might write one of these values in another form.
    pub(crate) fn write<'a>(&mut self, config: &'a [Config]) -> io::Result<Vec<&'a Config>> {
        let (own, left): (Vec<_>, Vec<_>) = config.iter().partition(|config| is_first(config));
        // Pulumi sets plain values before structured ones.
        let (plain, structured): (Vec<&Config>, Vec<&Config>) = own.into_iter().partition(|config| structured(config).is_none());
        let entries: Option<BTreeMap<String, String>> =
            plain.into_iter().chain(structured).map(|config| Some((self.key(config)?, value(config)?))).collect();
        // Pulumi knows how to replace an entry.
        let entries = entries.filter(|entries| !entries.keys().any(|name| self.base.names.contains(name)));
        let Some(entries) = entries else { return Ok(config.iter().collect()) };
        self.entries = entries;
        if !self.entries.is_empty() {
            self.save(&self.config())?;
        }
        Ok(left)
    }

    /// Writes the remaining entries if all are secret and Pulumi has written a salt of this
    /// passphrase into the file. Returns whether it did.
    pub(crate) fn write_secrets(&mut self, left: &[&Config], passphrase: &str) -> io::Result<bool> {
        let is_secret = |config: &&Config| config.secret && !config.path;
        let Some(salt) = fs::read_to_string(&self.path).ok().and_then(|text| salt(&text)) else { return Ok(false) };
        let Some(passphrase) = left.iter().all(is_secret).then(|| Passphrase::new(passphrase, &salt)).flatten() else {
            return Ok(false);
        };
        let secure = |config: &&Config| {
            let secret = passphrase.encrypt(&text(config))?;
            Some((self.name(&config.key)?, format!("{{\"secure\": {}}}", quoted(&secret))))
        };
        let Some(secrets) = left.iter().map(secure).collect::<Option<Vec<_>>>() else { return Ok(false) };
        if secrets.iter().any(|(name, _)| self.base.names.contains(name)) {
            return Ok(false);
        }
        self.entries.extend(secrets);
        let salt = if self.base.has_salt { String::new() } else { format!("encryptionsalt: {}\n", quoted(&salt)) };
        self.save(&(self.config() + &salt))?;
        Ok(true)
    }

    fn save(&self, text: &str) -> io::Result<()> {
        files::write(&self.path, text.as_bytes(), 0o600, 0o755)
    }

    fn config(&self) -> String {
        let Base { before, indent, after, .. } = &self.base;
        let lines = self.entries.iter().map(|(key, value)| format!("{indent}{}: {value}\n", quoted(key)));
        format!("{before}{}{after}", lines.collect::<String>())
    }

    /// Returns the key of an entry with its namespace, unless Pulumi may read it in another way.
    fn key(&self, config: &Config) -> Option<String> {
        // Pulumi reads the key of a structured value as a path.
        let is_path = structured(config).is_some() && config.key.contains('.');
        self.name(&config.key).filter(|_| !is_path)
    }

    fn name(&self, key: &str) -> Option<String> {
        let (namespace, name) = key.split_once(':').unwrap_or((&self.project, key));
        (is_plain(namespace) && is_plain(name) && key.len() <= MAX_KEY_BYTES).then(|| format!("{namespace}:{name}"))
    }
}

/// The settings file of the source, as the text before and after added entries. Its own text stays
/// as it is, with its comments.
struct Base {
    before: String,
    indent: String,
    after: String,
    /// The names of its entries.
    names: BTreeSet<String>,
    has_salt: bool,
}

impl Base {
    /// Splits a file below its line `config:`. `None` if its form leaves a doubt about where that
    /// is.
    fn new(text: &str) -> Option<Self> {
        if text.contains(['\r', '\t', '\u{feff}']) {
            return None;
        }
        let text = if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
        let is_empty = text.lines().all(|line| line.trim().is_empty() || line.starts_with('#'));
        let settings = if is_empty { Value::Object(Map::new()) } else { serde_saphyr::from_str(&text).ok()? };
        let settings = settings.as_object()?;
        let mut at = 0;
        let mut found = None;
        for line in text.split_inclusive('\n') {
            at += line.len();
            let is_of_entry = line.starts_with([' ', '#', '\n']);
            let is_name = line.split_once(':').is_some_and(|(name, _)| name.bytes().all(|byte| byte.is_ascii_alphabetic()));
            if !is_of_entry && !is_name {
                return None;
            }
            if line.starts_with("config:") {
                found = Some(at).filter(|_| line.trim_end() == "config:" && found.is_none());
                found?;
            }
        }
        let names = match settings.get("config") {
            None | Some(Value::Null) => BTreeSet::new(),
            // An older form has `config` between the namespace and the name.
            Some(config) => config.as_object()?.keys().map(|name| name.replacen(":config:", ":", 1)).collect(),
        };
        let has_salt = settings.contains_key("encryptionsalt");
        let Some(at) = found else {
            return Some(Self { before: text + "config:\n", indent: "  ".into(), after: String::new(), names, has_salt });
        };
        let (before, after) = (text[..at].to_owned(), text[at..].to_owned());
        let first = after.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        let indent = first.map_or("", |line| &line[..line.len() - line.trim_start().len()]);
        let indent = if indent.is_empty() { "  " } else { indent }.to_owned();
        Some(Self { before, indent, after, names, has_salt })
    }
}

/// Returns the salt in a settings file, if its secrets are encrypted with a passphrase.
fn salt(text: &str) -> Option<String> {
    let Ok(Value::Object(settings)) = serde_saphyr::from_str(text) else { return None };
    let has_key = ["secretsprovider", "encryptedkey"].iter().any(|name| settings.contains_key(*name));
    settings.get("encryptionsalt").filter(|_| !has_key)?.as_str().map(str::to_owned)
}

/// Returns whether `config set-all` sets an entry before the paths and before the values from
/// standard input.
fn is_first(config: &Config) -> bool {
    !config.secret && !config.path && text(config).len() <= MAX_ARGUMENT_BYTES
}

/// Returns whether a name needs no quoting as a file name, in YAML and as an argument.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Returns a value as YAML, unless Pulumi may write it in another form.
fn value(config: &Config) -> Option<String> {
    match &config.value {
        ConfigValue::Json(value) => yaml(value),
        ConfigValue::String(text) | ConfigValue::Token(text) => Some(quoted(text)),
    }
}

/// Returns a value in YAML's flow style; `None` for a null or a fraction, and for an object that
/// Pulumi may read as a secret.
fn yaml(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.as_i64()?.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("[{}]", values.iter().map(yaml).collect::<Option<Vec<_>>>()?.join(", ")),
        Value::Object(fields) if fields.contains_key("secure") => return None,
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let name = (name.len() <= MAX_KEY_BYTES).then(|| quoted(name))?;
                Some(format!("{name}: {}", yaml(value)?))
            });
            format!("{{{}}}", fields.collect::<Option<Vec<_>>>()?.join(", "))
        }
    })
}

/// Returns a text in YAML's double quotes. All but printable ASCII is escaped, so that every YAML
/// reader returns it unchanged.
fn quoted(text: &str) -> String {
    let chars = text.chars().map(|char| match char {
        '"' | '\\' => format!("\\{char}"),
        ' '..='~' => char.to_string(),
        _ => format!("\\U{:08x}", u32::from(char)),
    });
    format!("\"{}\"", chars.collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const STACK: &str = "organization/shop/dev";

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, project: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("driftless-settings-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("Pulumi.yaml"), project).unwrap();
            Self(dir)
        }

        fn file(&self, stack: &str, backend: &str) -> Option<SettingsFile> {
            SettingsFile::new(&self.0, stack, &[("PULUMI_BACKEND_URL".into(), backend.into())].into())
        }

        fn text(&self) -> String {
            fs::read_to_string(self.0.join("Pulumi.dev.yaml")).unwrap_or_default()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn entry(key: &str, value: ConfigValue) -> Config {
        Config { key: key.into(), path: false, value, secret: false }
    }

    fn plain(key: &str, text: &str) -> Config {
        entry(key, ConfigValue::String(text.into()))
    }

    #[test]
    fn file_is_written_only_where_pulumi_would_create_it() {
        let folder = Folder::new("place", "name: shop\nruntime: yaml\nconfig: { a: { type: string } }\n");
        for backend in ["file:///state", "s3://bucket?region=eu-west-1", "gs://bucket", "azblob://container"] {
            assert!(folder.file(STACK, backend).is_some(), "{backend}");
        }
        for (stack, backend) in [("dev", "https://api.pulumi.com"), ("dev", ""), ("a b", "s3://bucket"), ("org/", "s3://bucket")]
        {
            assert!(folder.file(stack, backend).is_none(), "{stack} {backend}");
        }
        assert!(SettingsFile::new(&folder.0, STACK, &BTreeMap::new()).is_none());
        for other in ["Pulumi.json", "Pulumi.yml"] {
            fs::write(folder.0.join(other), "{}").unwrap();
            assert!(folder.file(STACK, "s3://bucket").is_none(), "{other}");
            fs::remove_file(folder.0.join(other)).unwrap();
        }
        for project in ["stackConfigDir: stacks", "config: stacks", "name: 'a b'", "]"] {
            let folder = Folder::new("elsewhere", &format!("runtime: yaml\n{project}\n"));
            assert!(folder.file(STACK, "s3://bucket").is_none(), "{project}");
        }
    }

    #[test]
    fn entries_are_added_to_the_file_of_the_source() {
        let written = |name: &str, text: &str| {
            let folder = Folder::new(name, "name: shop\nruntime: yaml\n");
            fs::write(folder.0.join("Pulumi.dev.yaml"), text).unwrap();
            let config = [plain("a", "1")];
            let left = folder.file(STACK, "s3://bucket").map(|mut file| file.write(&config).unwrap().len());
            (left == Some(0)).then(|| folder.text())
        };
        for (name, before, after) in [
            ("empty", "", "config:\n  \"shop:a\": \"1\"\n"),
            ("comment", "# none yet\n", "# none yet\nconfig:\n  \"shop:a\": \"1\"\n"),
            ("null", "config:\nencryptionsalt: v1:x\n", "config:\n  \"shop:a\": \"1\"\nencryptionsalt: v1:x\n"),
            ("indent", "environment:\n- prod\nconfig: \n    # of AWS\n    aws:region: eu-west-1 # here\n", ""),
            (
                "block",
                "config:\n\n    # of AWS\n    aws:region: eu-west-1 # here\n    shop:text: |\n        config:\n",
                "config:\n    \"shop:a\": \"1\"\n\n    # of AWS\n    aws:region: eu-west-1 # here\n    shop:text: |\n        config:\n",
            ),
            ("last", "secretsprovider: awskms://key", "secretsprovider: awskms://key\nconfig:\n  \"shop:a\": \"1\"\n"),
            ("same", "config:\n  shop:a: 2\n", ""),
            ("older", "config:\n  shop:config:a: 2\n", ""),
            ("flow", "config: { shop:b: 2 }\n", ""),
            ("quoted", "\"config\":\n  shop:b: 2\n", ""),
            ("document", "---\nconfig:\n  shop:b: 2\n", ""),
            ("windows", "config:\r\n  shop:b: 2\r\n", ""),
            ("invalid", "config:\n  shop:b: [\n", ""),
        ] {
            assert_eq!(written(name, before), Some(after.to_owned()).filter(|after| !after.is_empty()), "{name}");
        }
    }

    #[test]
    fn values_are_written_as_texts_and_structures_and_the_rest_is_left() {
        let folder = Folder::new("values", "name: shop\nruntime: yaml\n");
        let structure = json!({ "n": 1, "on": true, "list": ["1", {}], "é": [] });
        let config = [
            plain("a", "first"),
            entry("tree", ConfigValue::Json(structure)),
            plain("aws:region", "tr\"ue\\\n\u{85}😀"),
            plain("a", "1"),
            Config { path: true, ..plain("list[0]", "x") },
            Config { secret: true, ..plain("token", "canary") },
            plain("long", &"x".repeat(MAX_ARGUMENT_BYTES + 1)),
        ];
        let mut file = folder.file(STACK, "s3://bucket").unwrap();
        let left: Vec<&str> = file.write(&config).unwrap().into_iter().map(|config| config.key.as_str()).collect();
        assert_eq!(left, ["list[0]", "token", "long"]);
        let expected = [
            "config:",
            r#"  "aws:region": "tr\"ue\\\U0000000a\U00000085\U0001f600""#,
            r#"  "shop:a": "1""#,
            r#"  "shop:tree": {"list": ["1", {}], "n": 1, "on": true, "\U000000e9": []}"#,
            "",
        ];
        assert_eq!(folder.text(), expected.join("\n"));
    }

    #[test]
    fn one_ambiguous_value_leaves_all_settings_to_pulumi() {
        for other in [
            plain("a=b", "x"),
            plain("a:config:b", "x"),
            plain("", "x"),
            entry("f", ConfigValue::Json(json!(1.0))),
            entry("n", ConfigValue::Json(json!([null]))),
            entry("s", ConfigValue::Json(json!({ "secure": "v1:x" }))),
            entry("a.b", ConfigValue::Json(json!({}))),
            entry("u", ConfigValue::Json(json!(u64::MAX))),
        ] {
            let folder = Folder::new("other", "name: shop\nruntime: yaml\n");
            let config = [plain("a", "1"), other];
            assert_eq!(folder.file(STACK, "s3://bucket").unwrap().write(&config).unwrap().len(), 2, "{}", config[1].key);
            assert_eq!(folder.text(), "");
        }
    }

    #[test]
    fn secrets_are_written_with_the_recorded_salt() {
        const SALT: &str = "v1:EAqe1n0Wkwo=:v1:0n7VeclnEGpRlhE0:aBeMyY8MAudbDgXv/0st1XiBn+FhSQ==";
        let folder = Folder::new("secrets", "name: shop\nruntime: yaml\n");
        let config = [plain("a", "1"), Config { secret: true, ..plain("token", "canary") }];
        let path = Config { path: true, secret: true, ..plain("tree.leaf", "canary") };
        let mut file = folder.file(STACK, "s3://bucket").unwrap();
        let left = file.write(&config).unwrap();
        for (added, left, passphrase) in [
            (String::new(), left.clone(), "pw"),
            (format!("encryptionsalt: {SALT}\n"), left.clone(), "other"),
            (format!("encryptionsalt: {SALT}\nsecretsprovider: awskms://key\n"), left.clone(), "pw"),
            (format!("encryptionsalt: {SALT}\n"), vec![&config[1], &path], "pw"),
            (format!("encryptionsalt: {SALT}\n"), vec![&config[0]], "pw"),
        ] {
            fs::write(folder.0.join("Pulumi.dev.yaml"), format!("config:\n  shop:a: \"1\"\n{added}")).unwrap();
            assert!(!file.write_secrets(&left, passphrase).unwrap(), "{added}");
        }
        fs::write(folder.0.join("Pulumi.dev.yaml"), format!("config:\n  shop:a: |-\n    1\n\nencryptionsalt: {SALT}\n")).unwrap();
        assert!(file.write_secrets(&left, "pw").unwrap());
        let text = folder.text();
        // The salt of the source's own file stays in its place.
        fs::write(folder.0.join("Pulumi.dev.yaml"), format!("encryptionsalt: {SALT}\nconfig:\n  shop:b: \"1\"\n")).unwrap();
        let mut own = folder.file(STACK, "s3://bucket").unwrap();
        let left = own.write(&config).unwrap();
        assert!(own.write_secrets(&left, "pw").unwrap());
        let kept = folder.text();
        assert!(
            kept.starts_with(&format!("encryptionsalt: {SALT}\nconfig:\n  \"shop:a\": \"1\"\n  \"shop:token\": {{\"secure\"")),
            "{kept}"
        );
        assert!(kept.ends_with("  shop:b: \"1\"\n") && kept.matches("encryptionsalt").count() == 1, "{kept}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!([lines[0], lines[1], lines[3]], ["config:", r#"  "shop:a": "1""#, &*format!("encryptionsalt: \"{SALT}\"")]);
        assert!(lines[2].starts_with(r#"  "shop:token": {"secure": "v1:"#) && !text.contains("canary"), "{text}");
    }
}
