//! Scratch.
#![allow(clippy::all, clippy::pedantic, clippy::unwrap_used)]
use driftless_contract::*;
use driftless_kubernetes::*;
use k8s_openapi::api::core::v1::*;
use k8s_openapi::api::coordination::v1::Lease;
fn meta(ns: &str, name: &str) -> kube::core::ObjectMeta { kube::core::ObjectMeta { namespace: Some(ns.into()), name: Some(name.into()), ..Default::default() } }
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let clusters = Clusters::new(std::env::var("KUBECONFIG").unwrap().into(), "driftless-scratch");
    let c = clusters.get("sim").await.unwrap();
    let s = Secret { metadata: meta("default", "s"), ..Default::default() };
    let s1 = c.create(&s).await.unwrap();
    println!("again {:?}", c.create(&s).await.unwrap_err());
    println!("no ns {:?}", c.create(&Secret { metadata: meta("nope", "s"), ..Default::default() }).await.unwrap_err());
    let mut s2 = s1.clone(); s2.metadata.labels = Some([("a".to_string(), "b".to_string())].into());
    let s2 = c.replace(&s2).await.unwrap();
    println!("stale {:?}", c.replace(&{ let mut s = s1.clone(); s.type_ = None; s }).await.unwrap_err());
    println!("stale delete {:?}", c.delete(&s1).await.unwrap_err());
    println!("delete {:?} {:?}", c.delete(&s2).await, c.delete(&s2).await);
    println!("gone {:?}", c.replace(&s2).await.unwrap_err());
    println!("get {:?}", c.get::<Secret>("default", "s").await);
    println!("path {:?}", c.get::<Secret>("default", "../../default/secrets").await);
    let a = c.apply(&Secret { metadata: meta("default", "applied"), string_data: Some([("k".to_string(), "v".to_string())].into()), ..Default::default() }).await.unwrap();
    println!("manager {:?}", a.metadata.managed_fields.unwrap()[0].manager);
    let key = |v: &str, k: &str, n: &str| ObjectKey { cluster: "sim".into(), api_version: v.into(), kind: k.into(), namespace: "default".into(), name: n.into() };
    println!("dyn {:?}", c.get_dynamic(&key("v1", "Secret", "applied")).await.unwrap().is_some());
    println!("dyn none {:?} kind {:?}", c.get_dynamic(&key("v1", "Secret", "x")).await, c.get_dynamic(&key("foo.bar/v1", "GitRepository", "x")).await);
    for i in 0..1203 { c.create(&ConfigMap { metadata: meta("default", &format!("c{i}")), ..Default::default() }).await.unwrap(); }
    println!("list {} {}", c.list::<ConfigMap>(None, None).await.unwrap().len(), c.list::<ConfigMap>(Some("default"), Some("metadata.name=c7")).await.unwrap().len());
    println!("lease {:?}", c.create(&Lease { metadata: meta("default", "l"), ..Default::default() }).await.unwrap().metadata.uid);
    c.event(&a_ref(&c).await, EventType::Warning, "Because", &"ä".repeat(800), "2026-01-01T00:00:00.123456Z".parse().unwrap()).await;
    let e = c.list::<k8s_openapi::api::events::v1::Event>(Some("default"), None).await.unwrap();
    println!("event {:?}", e.iter().map(|e| (e.metadata.name.clone(), e.type_.clone(), e.note.as_ref().map(|n| n.len()))).collect::<Vec<_>>());
    let c2 = clusters.get("dead").await.unwrap();
    println!("dead {:?}", c2.get::<Secret>("default", "x").await.unwrap_err());
}
async fn a_ref(c: &Client) -> Secret { c.get("default", "applied").await.unwrap().unwrap() }
