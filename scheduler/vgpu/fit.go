// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// FitName is the name of the plugin Fit in KubeSchedulerConfiguration.
const FitName = "VGPUNodeResourcesFit"

// FitArgs are the arguments of VGPU and of NodeResourcesFit.
type FitArgs struct {
	Args                          `json:",inline"`
	configv1.NodeResourcesFitArgs `json:",inline"`
}

// Fit is Kubernetes' plugin NodeResourcesFit without the resources that VGPU itself checks.
// NodeResourcesFit validates the name of each extended resource for each node, which costs more
// than all other work of filters. A profile that has VGPU may enable Fit and disable
// NodeResourcesFit. The verdicts are the same.
type Fit struct {
	*noderesources.Fit
	ours []string
}

var (
	_ fwk.PreFilterPlugin   = (*Fit)(nil)
	_ fwk.FilterPlugin      = (*Fit)(nil)
	_ fwk.PreScorePlugin    = (*Fit)(nil)
	_ fwk.ScorePlugin       = (*Fit)(nil)
	_ fwk.EnqueueExtensions = (*Fit)(nil)
	_ fwk.SignPlugin        = (*Fit)(nil)
)

// NewFit returns the plugin Fit.
func NewFit(ctx context.Context, raw runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	var args FitArgs
	if err := frameworkruntime.DecodeInto(raw, &args); err != nil {
		return nil, fmt.Errorf("read the arguments of plugin %s: %w", FitName, err)
	}
	nodes, err := args.load(FitName)
	if err != nil {
		return nil, err
	}
	scheme.Scheme.Default(&args.NodeResourcesFitArgs)
	var inTree config.NodeResourcesFitArgs
	if err := scheme.Scheme.Convert(&args.NodeResourcesFitArgs, &inTree, nil); err != nil {
		return nil, fmt.Errorf("convert the arguments of plugin %s: %w", FitName, err)
	}
	plugin, err := plugins.NewInTreeRegistry()[names.NodeResourcesFit](ctx, &inTree, handle)
	if err != nil {
		return nil, err
	}
	return &Fit{plugin.(*noderesources.Fit), request.Names(nodes.Config.Dialects)}, nil
}

// Name returns the plugin's name.
func (*Fit) Name() string { return FitName }

// PreFilter reads the pod's requests of resources that VGPU does not check.
func (f *Fit) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return f.Fit.PreFilter(ctx, state, f.others(pod), nodes)
}

// others returns a copy of the pod without the requests that VGPU checks.
func (f *Fit) others(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, name := range f.ours {
				delete(containers[i].Resources.Requests, corev1.ResourceName(name))
			}
		}
	}
	return pod
}
