import * as pulumi from "@pulumi/pulumi";
import * as random from "@pulumi/random";

// A keeper that changes replaces the pet.
const resource = new random.RandomPet("pet", {
    length: 2,
    keepers: { directory: __dirname, kubeconfig: process.env.KUBECONFIG ?? "", region: process.env.AWS_REGION ?? "" },
});

export const pet = resource.id;
export const keepers = resource.keepers;
export const word = new pulumi.Config().requireSecret("word");
// The version of a package that is installed.
export const types: string = require("@types/node/package.json").version;
