//! The operator's kubeconfig.

use driftless_kubernetes::Entry;
use kube::config::Kubeconfig;

use crate::input::text;

/// The input is a kubeconfig, from which the context `shop` is read.
pub fn check(input: &[u8]) {
    let Ok(entry) = Entry::read(text(input), "shop") else { return };
    assert!(entry.user.exec.is_none() && entry.user.auth_provider.is_none() && entry.cluster.proxy_url.is_none());
    let kubeconfig = entry.into_kubeconfig(None);
    let written = json(&kubeconfig);
    match Entry::read(&written, "shop") {
        Ok(again) => assert_eq!(json(&again.into_kubeconfig(None)), written),
        // The name of an unknown field may be too long for YAML on one line.
        Err(error) => assert!(written.len() > 1024, "{error}"),
    }
}

fn json(kubeconfig: &Kubeconfig) -> String {
    serde_json::to_string(kubeconfig).expect("a kubeconfig")
}
