//! `make prove`: the questions that only AWS can answer, asked of an installation. [`scenarios`] runs Stacks and reads what became of them
//! from Kubernetes, ECS and S3; [`installation`] makes an installation for it and removes it; [`budget`] bounds its cost; [`record`] is
//! what it leaves. The scenarios know nothing of what answers them: AWS, or the one-machine world.

pub mod budget;
pub mod installation;
pub mod record;
pub mod scenarios;

#[cfg(test)]
mod tests;
