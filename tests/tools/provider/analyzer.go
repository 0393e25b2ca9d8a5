package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// rule is a policy of a pack with `runtime: world`: a resource whose inputs have the word violates it.
type rule struct {
	Name  string `json:"name"`
	Level string `json:"level"`
	Word  string `json:"word"`
}

// analyzer applies the rules.json of the pack, whose directory Pulumi starts it in. Its messages show the inputs, secrets too.
type analyzer struct {
	pulumirpc.UnimplementedAnalyzerServer
	rules []rule
}

func (a analyzer) Analyze(_ context.Context, req *pulumirpc.AnalyzeRequest) (*pulumirpc.AnalyzeResponse, error) {
	inputs, err := json.Marshal(req.GetProperties().AsMap())
	response := &pulumirpc.AnalyzeResponse{}
	for _, rule := range a.rules {
		if strings.Contains(string(inputs), rule.Word) {
			level := pulumirpc.EnforcementLevel_value[strings.ToUpper(rule.Level)]
			response.Diagnostics = append(response.Diagnostics, &pulumirpc.AnalyzeDiagnostic{
				PolicyName: rule.Name, PolicyPackName: "world", PolicyPackVersion: "1.0.0",
				Message: "the inputs are " + string(inputs), EnforcementLevel: pulumirpc.EnforcementLevel(level),
			})
		}
	}
	return response, err
}

func (a analyzer) GetAnalyzerInfo(context.Context, *emptypb.Empty) (*pulumirpc.AnalyzerInfo, error) {
	info := &pulumirpc.AnalyzerInfo{Name: "world", Version: "1.0.0"}
	for _, rule := range a.rules {
		info.Policies = append(info.Policies, &pulumirpc.PolicyInfo{Name: rule.Name})
	}
	return info, nil
}

func (analyzer) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{Version: "1.0.0"}, nil
}

func analyze() error {
	var a analyzer
	rules, err := os.ReadFile("rules.json")
	if err == nil {
		err = json.Unmarshal(rules, &a.rules)
	}
	if err != nil {
		return err
	}
	served, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{Init: func(server *grpc.Server) error {
		pulumirpc.RegisterAnalyzerServer(server, a)
		return nil
	}})
	if err != nil {
		return err
	}
	fmt.Println(served.Port)
	return <-served.Done
}
