import os

import pulumi
import pulumi_random

# A keeper that changes replaces the pet.
resource = pulumi_random.RandomPet(
    "pet",
    length=2,
    keepers={
        "directory": os.path.dirname(os.path.abspath(__file__)),
        "kubeconfig": os.environ.get("KUBECONFIG", ""),
        "region": os.environ.get("AWS_REGION", ""),
    },
)

pulumi.export("pet", resource.id)
pulumi.export("keepers", resource.keepers)
pulumi.export("word", pulumi.Config().require_secret("word"))
