// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

const (
	// startPatience bounds each component's start. A busy machine with slow disks may need a
	// minute.
	startPatience = 3 * time.Minute
	pollInterval  = 100 * time.Millisecond
)

// Up starts a cluster and returns when its node is Ready and pods can be created. On failure Up
// removes all files but the logs.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	if err := preflight(); err != nil {
		return nil, err
	}
	if o.Reuse {
		if c, err := Find(o); err == nil {
			fmt.Fprintf(o.Out, "cluster %s runs already\n", o.Name)
			return c, c.waitReady(ctx, newProgress(o.Out))
		}
	}
	if o, err = o.withBinaries(ctx); err != nil {
		return nil, err
	}
	// Down removes the remains of an earlier cluster of this name.
	if err := Down(Options{Name: o.Name, StateDir: o.StateDir}); err != nil {
		return nil, fmt.Errorf("remove the remains of an earlier cluster: %w", err)
	}
	progress := newProgress(o.Out)
	progress.say("starting cluster %s in %s", o.Name, o.StateDir)
	c, err := launch(ctx, o)
	if err != nil {
		return nil, errors.Join(err, clean(o))
	}
	if err := c.waitReady(ctx, progress); err != nil {
		return nil, errors.Join(err, clean(o))
	}
	progress.say("cluster %s is ready", o.Name)
	return c, nil
}

func (o Options) withBinaries(ctx context.Context) (Options, error) {
	if o.Binaries != nil {
		return o, nil
	}
	o, err := o.withRoot()
	if err != nil {
		return o, err
	}
	modules, err := components.NodeModules(o.ContainerdLine, o.KubeletLine)
	if err != nil {
		return o, err
	}
	builder := components.Builder{Root: o.Root, Downloads: o.Downloads, Out: o.Out}
	if o.Binaries, err = builder.Build(ctx, modules); err != nil || o.CRIO == "" {
		return o, err
	}
	programs, err := crioPrograms(o.CRIO)
	maps.Copy(o.Binaries, programs)
	return o, err
}

// clean takes down a cluster that failed to start, but keeps its logs.
func clean(o Options) error {
	o.KeepLogs = true
	if err := Down(o); err != nil {
		return err
	}
	return fmt.Errorf("the logs are in %s", filepath.Join(o.StateDir, "logs"))
}

// launch prepares the state directory and starts the node.
func launch(ctx context.Context, o Options) (*Cluster, error) {
	if err := os.MkdirAll(filepath.Join(o.StateDir, "logs"), 0o755); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	var err error
	if o.StateDir, err = filepath.EvalSymlinks(o.StateDir); err != nil {
		return nil, fmt.Errorf("resolve the state directory: %w", err)
	}
	// Until the device has the addresses, other processes may choose the same addresses.
	unlock, err := lockClusters(ctx, filepath.Dir(o.StateDir))
	if err != nil {
		return nil, err
	}
	defer unlock()
	p := plan{Options: o}
	if err := p.choose(); err != nil {
		return nil, err
	}
	if err := p.prepare(ctx); err != nil {
		return nil, err
	}
	r, err := p.start()
	if err != nil {
		return nil, err
	}
	return newCluster(o, r)
}

// beside returns the process to whose network the node is connected, or 0 for the machine's
// network.
func (p plan) beside() int {
	if p.Control == nil {
		return 0
	}
	return p.Control.record.Pid
}

// choose chooses unused addresses.
func (p *plan) choose() error {
	network, err := networkOf(p.beside())
	if err != nil {
		return err
	}
	defer network.Close()
	taken, err := takenRanges(network)
	if err != nil {
		return err
	}
	if p.link, err = chooseLink(p.Name, taken); err != nil || p.Control == nil {
		return err
	}
	p.link.pods, err = choosePods(taken)
	return err
}

// prepare writes all files that the node reads.
func (p plan) prepare(ctx context.Context) error {
	if err := p.makeDirs(); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	t := tree{filepath.Join(p.StateDir, "tree")}
	if err := t.writeConfig(p); err != nil {
		return err
	}
	admin, err := t.writePKI(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.StateDir, kubeconfigFile), admin, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	if err := image.BuildPause(ctx, pauseArchive(p.StateDir), SandboxImage); err != nil {
		return err
	}
	return p.spec().Write()
}

func pauseArchive(stateDir string) string { return filepath.Join(stateDir, "pause.tar") }

// start starts the supervisor and connects the node. start writes the record first, so that Down
// can undo every later step.
func (p plan) start() (record, error) {
	started, err := node.Start(p.StateDir)
	if err != nil {
		return record{}, err
	}
	_, startTime, err := processState(started.Pid)
	if err != nil {
		return record{}, err
	}
	r := record{
		Name: p.Name, Device: p.link.device, Pid: started.Pid, StartTime: startTime,
		Address: p.link.node.Addr().String(), Kubectl: p.Binaries["kubectl"], Runtime: p.runtime().Name,
	}
	if err := r.write(p.StateDir); err != nil {
		return record{}, errors.Join(err, endProcess(r.Pid, r.StartTime))
	}
	if err := p.connect(started.Pid); err != nil {
		return record{}, err
	}
	return r, started.GoAhead()
}

func (p plan) connect(pid int) error {
	// A device of this name can only come from an earlier cluster of this name.
	if err := disconnect(p.link.device); err != nil {
		return err
	}
	network, err := networkOf(p.beside())
	if err != nil {
		return err
	}
	defer network.Close()
	if err := p.link.connect(network, pid); err != nil || p.Control == nil {
		return err
	}
	return p.link.connectPods(network)
}

// waitReady waits for the components, loads the images as soon as the runtime serves, and
// waits until pods can be created and run.
func (c *Cluster) waitReady(ctx context.Context, progress *progress) error {
	if err := c.waitComponents(ctx, progress); err != nil {
		return err
	}
	if err := c.waitNode(ctx, progress); err != nil {
		return err
	}
	return c.await(ctx, "the default service account", func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (c *Cluster) waitComponents(ctx context.Context, progress *progress) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	ready := map[string]bool{}
	for {
		statuses, err := c.control.Components(ctx)
		if err != nil && !alive(c.record.Pid, c.record.StartTime) {
			return c.withLog("supervisor", errors.New("the node's supervisor has ended"))
		}
		for _, s := range statuses {
			if s.State == node.Exited {
				return c.withLog(s.Name, fmt.Errorf("%s has ended: %s", s.Name, s.Detail))
			}
			if s.State != node.Ready || ready[s.Name] {
				continue
			}
			ready[s.Name] = true
			progress.say("%s serves", s.Name)
			if s.Name == c.Runtime() {
				if err := c.loadImages(ctx); err != nil {
					return c.withLog(s.Name, err)
				}
			}
		}
		if len(statuses) > 0 && len(ready) == len(statuses) {
			return nil
		}
		if err := pause(ctx, pollInterval); err != nil {
			return c.explainSlow(statuses, err)
		}
	}
}

func (c *Cluster) loadImages(ctx context.Context) error {
	for _, archive := range c.images {
		if err := c.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// explainSlow names the component that is not ready yet.
func (c *Cluster) explainSlow(statuses []node.Status, cause error) error {
	for _, s := range statuses {
		if s.State == node.Starting {
			return c.withLog(s.Name, fmt.Errorf("%s does not serve yet (%s): %w", s.Name, s.Detail, cause))
		}
	}
	return c.withLog("supervisor", fmt.Errorf("the node is not up yet: %w", cause))
}

func (c *Cluster) waitNode(ctx context.Context, progress *progress) error {
	err := c.await(ctx, "the node to be Ready", func(ctx context.Context) error {
		n, err := c.client.CoreV1().Nodes().Get(ctx, c.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return nodeReady(n)
	})
	if err != nil {
		return c.withLog(Kubelet, err)
	}
	progress.say("node %s is Ready", c.NodeName)
	return nil
}

// nodeReady returns nil when kubelet reports Ready and the not-ready taint is gone. The scheduler
// places no pod on a tainted node.
func nodeReady(n *corev1.Node) error {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady {
			return fmt.Errorf("node has the taint %s", t.Key)
		}
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node is not Ready: %s", condition.Message)
		}
	}
	return errors.New("the kubelet has not reported yet")
}

// await repeats a check until it succeeds, and returns its last error at the deadline.
func (c *Cluster) await(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if waitErr := pause(ctx, pollInterval); waitErr != nil {
			return fmt.Errorf("wait for %s: %w: %w", what, waitErr, err)
		}
	}
}
