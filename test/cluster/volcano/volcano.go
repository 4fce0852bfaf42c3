// SPDX-License-Identifier: Apache-2.0

// Package volcano installs Volcano's scheduler and controllers on a local cluster, from Volcano's
// own manifest, without webhooks. Volcano's scheduler places pods by their parts of GPUs.
package volcano

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

// Scheduler is the name by which pods request Volcano's scheduler, and Namespace is the scheduler's
// namespace.
const (
	Scheduler = "volcano"
	Namespace = "volcano-system"
)

// These are Volcano's Deployments.
const (
	SchedulerDeployment   = "volcano-scheduler"
	ControllersDeployment = "volcano-controllers"
)

// images are the programs of the deployments, each with its path in the image and its name as a
// built program.
var images = map[string]struct{ path, built string }{
	SchedulerDeployment:   {"/vc-scheduler", components.VolcanoScheduler},
	nextScheduler:         {"/vc-scheduler", components.VolcanoSchedulerNext},
	ControllersDeployment: {"/vc-controller-manager", "controller-manager"},
}

// nextScheduler is the image of the scheduler of the next generation.
const nextScheduler = SchedulerDeployment + "-next"

// Options configure Volcano.
type Options struct {
	// Root is the repository's root.
	Root string
	// NodeLock makes the scheduler lock a node from an assignment until the node has acknowledged
	// the assignment.
	NodeLock bool
	// Next runs the scheduler of Volcano 1.15.1 instead of 1.14.1.
	Next bool
	// Built are Volcano's programs, as Build returns them.
	Built components.Binaries
	// Archives is a directory for the images.
	Archives string
}

// Build returns Volcano's programs. Build builds the programs that the cache lacks.
func Build(ctx context.Context, builder components.Builder) (components.Binaries, error) {
	return builder.Build(ctx, components.Volcano())
}

// Install installs Volcano on a cluster, on its first node, and waits until it serves.
func Install(ctx context.Context, c *cluster.Cluster, o Options) error {
	if err := o.loadImages(ctx, c); err != nil {
		return err
	}
	if o.Next { // leaves the controllers unchanged
		first := o
		first.Next = false
		if err := Configure(ctx, c, first); err != nil {
			return err
		}
	}
	return Configure(ctx, c, o)
}

// Configure changes the options of an installed Volcano, and waits until Volcano serves again.
func Configure(ctx context.Context, c *cluster.Cluster, o Options) error {
	manifest, err := o.manifest(ctx, c.NodeName)
	if err != nil {
		return err
	}
	// The definitions come first, and are too large for kubectl's annotation.
	apply := exec.CommandContext(ctx, c.Kubectl(), "--kubeconfig", c.Kubeconfig(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	apply.Stdin = bytes.NewReader(manifest)
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("install Volcano: %w: %s", err, bytes.TrimSpace(out))
	}
	return Await(ctx, c)
}

// Await waits until Volcano serves.
func Await(ctx context.Context, c *cluster.Cluster) error {
	for _, name := range []string{SchedulerDeployment, ControllersDeployment} {
		out, err := exec.CommandContext(ctx, c.Kubectl(), "--kubeconfig", c.Kubeconfig(), "--namespace", Namespace,
			"rollout", "status", "deployment/"+name, "--timeout=2m").CombinedOutput()
		if err != nil {
			return fmt.Errorf("wait for %s: %w: %s", name, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

func nameOf(image string) string { return "localhost/nri-vgpu/" + image + ":test" }

// version returns a text that differs between configurations.
func (o Options) version() string { return fmt.Sprintf("next=%t lock=%t", o.Next, o.NodeLock) }

func (o Options) imageOf(deployment string) string {
	if deployment == SchedulerDeployment && o.Next {
		return nameOf(nextScheduler)
	}
	return nameOf(deployment)
}

func (o Options) loadImages(ctx context.Context, c *cluster.Cluster) error {
	for deployment, program := range images {
		archive := filepath.Join(o.Archives, c.NodeName+"-"+deployment+".tar")
		err := image.Build(archive, image.Spec{
			Name: nameOf(deployment), Entrypoint: []string{program.path}, Plain: true,
			Files: append(image.BaseLayout(), image.File{Path: program.path, Source: o.Built[program.built], Mode: 0o755}),
		})
		if err != nil {
			return err
		}
		if err := c.LoadImage(ctx, archive); err != nil {
			return err
		}
		if err := os.Remove(archive); err != nil {
			return fmt.Errorf("remove an image that was loaded: %w", err)
		}
	}
	return nil
}

// manifest returns the needed part of Volcano's own manifest, with our images on the node and the
// scheduler's configuration.
func (o Options) manifest(ctx context.Context, node string) ([]byte, error) {
	dir, err := o.moduleDir(ctx)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(dir, "installer", "volcano-development.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the manifest of Volcano: %w", err)
	}
	var kept bytes.Buffer
	for document := range strings.SplitSeq(string(content), "\n---") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return nil, fmt.Errorf("parse the manifest of Volcano: %w", err)
		}
		if !o.wanted(object) {
			continue
		}
		o.adapt(object, node)
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("encode the manifest of Volcano: %w", err)
		}
		fmt.Fprintf(&kept, "---\n%s", text)
	}
	kept.WriteString(deviceConfig)
	return kept.Bytes(), nil
}

// deviceConfig configures the names of resources. Without this configuration, the scheduler knows
// no memory in percent, and counts all of a GPU's memory for pods that request percent.
const deviceConfig = `---
apiVersion: v1
kind: ConfigMap
metadata:
  name: volcano-vgpu-device-config
  namespace: kube-system
data:
  device-config.yaml: |
    nvidia:
      resourceCountName: volcano.sh/vgpu-number
      resourceMemoryName: volcano.sh/vgpu-memory
      resourceMemoryPercentageName: volcano.sh/vgpu-memory-percentage
      resourceCoreName: volcano.sh/vgpu-cores
`

// moduleDir returns the directory of Volcano's sources in the module cache.
func (o Options) moduleDir(ctx context.Context) (string, error) {
	modFile := "go.mod"
	if o.Next {
		modFile = "next.mod"
	}
	list := exec.CommandContext(ctx, "go", "list", "-modfile="+modFile, "-m", "-f", "{{.Dir}}", "volcano.sh/volcano")
	list.Dir = filepath.Join(o.Root, "tools", "volcano")
	list.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find Volcano's sources: %w", err)
	}
	dir := strings.TrimSpace(string(out))
	if dir != "" {
		return dir, nil
	}
	// The cache supplied Volcano's programs, so the sources may be missing.
	download := exec.CommandContext(ctx, "go", "mod", "download", "-modfile="+modFile, "volcano.sh/volcano")
	download.Dir, download.Env = list.Dir, list.Env
	if out, err := download.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch Volcano's sources: %w: %s", err, bytes.TrimSpace(out))
	}
	return o.moduleDir(ctx)
}

// wanted reports whether Install needs an object of the manifest. wanted omits webhooks with their
// objects, and services, because no test uses these objects.
func (o Options) wanted(object map[string]any) bool {
	kind, _ := object["kind"].(string)
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	switch kind {
	case "CustomResourceDefinition":
		return true
	case "Namespace", "ServiceAccount", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "Deployment":
		// The controllers of 1.14.1 stay unchanged, because they do not know the flags of 1.15.1.
		stays := o.Next && strings.Contains(name, "volcano-controller")
		return !stays && !strings.Contains(name, "admission") && name != "volcano-monitoring"
	}
	return false
}

func (o Options) adapt(object map[string]any, node string) {
	metadata := object["metadata"].(map[string]any)
	name := metadata["name"].(string)
	switch object["kind"] {
	case "ConfigMap":
		if name == "volcano-scheduler-configmap" {
			object["data"] = map[string]any{"volcano-scheduler.conf": o.schedulerConfig()}
		}
	case "Deployment":
		spec := object["spec"].(map[string]any)
		// Two concurrent schedulers would both place pods.
		spec["strategy"] = map[string]any{"type": "Recreate"}
		template := spec["template"].(map[string]any)
		if name == SchedulerDeployment { // the scheduler reads its configuration only at its start
			template["metadata"].(map[string]any)["annotations"] = map[string]any{"test/version": o.version()}
		}
		pod := template["spec"].(map[string]any)
		pod["nodeSelector"] = map[string]any{"kubernetes.io/hostname": node}
		pod["terminationGracePeriodSeconds"] = 1
		container := pod["containers"].([]any)[0].(map[string]any)
		container["image"], container["imagePullPolicy"] = o.imageOf(name), "Never"
	}
}

// schedulerConfig returns the configuration from Volcano's documentation for parts of GPUs.
func (o Options) schedulerConfig() string {
	return fmt.Sprintf(`actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true
      deviceshare.NodeLockEnable: %t
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
`, o.NodeLock)
}
