// SPDX-License-Identifier: Apache-2.0

// nri-vgpu-scheduler is kube-scheduler with the plugin VGPU, which fits pods to single GPUs.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // the log format "json"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/nri-vgpu/nri-vgpu/scheduler/vgpu"
)

func main() {
	command := app.NewSchedulerCommand(
		app.WithPlugin(vgpu.Name, vgpu.New), app.WithPlugin(vgpu.FitName, vgpu.NewFit), app.WithPlugin(vgpu.PreemptionName, vgpu.NewPreemption))
	command.Use = "nri-vgpu-scheduler"
	os.Exit(cli.Run(command))
}
