package main

import (
	"os"

	"github.com/pulumi/pulumi-random/sdk/v4/go/random"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		directory, err := os.Getwd()
		if err != nil {
			return err
		}
		keepers := pulumi.StringMap{
			"directory":  pulumi.String(directory),
			"kubeconfig": pulumi.String(os.Getenv("KUBECONFIG")),
			"region":     pulumi.String(os.Getenv("AWS_REGION")),
		}
		// A keeper that changes replaces the pet.
		resource, err := random.NewRandomPet(ctx, "pet", &random.RandomPetArgs{Length: pulumi.Int(2), Keepers: keepers})
		if err != nil {
			return err
		}
		ctx.Export("pet", resource.ID())
		ctx.Export("keepers", resource.Keepers)
		ctx.Export("word", config.RequireSecret(ctx, "app:word"))
		return nil
	})
}
