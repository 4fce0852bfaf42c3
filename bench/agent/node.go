// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

const (
	agentName   = "nri-vgpu"
	patcherName = "extended-resource-patcher"
	// nodeName is a Node without a kubelet. Only the agent handles the node's pods.
	nodeName  = "measured"
	gpus      = 8
	gpuMemory = "24GiB"
	asked     = 2048 // MiB
	patience  = time.Minute
	// No other program on the machine uses these addresses.
	agentAddress   = "127.0.0.1:19394"
	patcherAddress = "127.0.0.1:19395"
	agentProbes    = "127.0.0.1:19396"
	patcherProbes  = "127.0.0.1:19397"
	auditLog       = "/run/audit.log"
	auditPolicy    = "/etc/kubernetes/audit.yaml"
)

// policy has the API server log every request of the two programs.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
`

// node is an API server with a full node, and the programs that serve it.
type node struct {
	options
	dir      string
	cluster  *cluster.Cluster
	runtime  *nodeRuntime
	programs map[string]*exec.Cmd
	pods     []corev1.Pod
	// instances counts the containers that the flood has created for each pod.
	instances []int
}

func newNode(ctx context.Context, o options, dir string) (*node, error) {
	n := &node{options: o, dir: dir, programs: map[string]*exec.Cmd{}}
	for _, step := range []func(context.Context) error{n.startCluster, n.makePods, n.makeGPUs, n.startRuntime, n.startPrograms} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// startCluster starts the cluster, and stops all programs that the measured programs do not use.
// The unused programs would disturb the measurement.
func (n *node) startCluster(ctx context.Context) (err error) {
	file := filepath.Join(n.dir, "audit.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return err
	}
	n.cluster, err = cluster.Up(ctx, cluster.Options{
		Name: "bench-agent", Out: os.Stderr, Files: map[string]string{auditPolicy: file},
		APIServer: []string{"--audit-policy-file=" + auditPolicy, "--audit-log-path=" + auditLog},
	})
	if err != nil {
		return err
	}
	for _, component := range []string{cluster.Kubelet, cluster.Scheduler, cluster.ControllerManager, cluster.Containerd} {
		if err := n.cluster.Stop(ctx, component); err != nil {
			return err
		}
	}
	return nil
}

// makePods creates a Node and its pods.
func (n *node) makePods(ctx context.Context) error {
	api := n.cluster.Client().CoreV1()
	_, err := api.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a node: %w", err)
	}
	for i := range n.options.pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprintf("pod-%d", i),
				Labels: map[string]string{"app": "measured", "number": strconv.Itoa(i)},
			},
			Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}
		if i < n.asking {
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				"nri-vgpu.io/vgpu-memory": *resource.NewQuantity(asked, resource.DecimalSI)}
		}
		made, err := api.Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create a pod: %w", err)
		}
		n.pods, n.instances = append(n.pods, *made), append(n.instances, 0)
	}
	return nil
}

func (n *node) makeGPUs(ctx context.Context) error {
	tool := filepath.Join(n.build, "gpusim", "gpusim")
	devices := filepath.Join(n.dir, "gpusim")
	script := `"$0" create --gpus "$1" --memory "$2" "$3" && mkdir -p "$4" && "$0" cdi --driver-dir "$5" --device-dir "$3" > "$4/nvidia.yaml"`
	out, err := exec.CommandContext(ctx, "sh", "-c", script,
		tool, strconv.Itoa(gpus), gpuMemory, devices, n.cdiDir(), filepath.Dir(tool)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make simulated GPUs (make build comes first): %w: %s", err, out)
	}
	return nil
}

func (n *node) cdiDir() string    { return filepath.Join(n.dir, "cdi") }
func (n *node) nriSocket() string { return filepath.Join(n.dir, "nri.sock") }

func (n *node) config() string {
	return fmt.Sprintf(`
[driver]
nvml_library = %q
[injection]
cdi_spec_dirs = [%q]
cdi_output_dir = %q
[nri]
socket_path = %q
[paths]
install_dir = %q
run_dir = %q
[http]
address = %q
probe_address = %q
`, filepath.Join(n.build, "gpusim", "libnvidia-ml.so.1"), n.cdiDir(), n.cdiDir(), n.nriSocket(),
		filepath.Join(n.dir, "opt"), filepath.Join(n.dir, "run"), agentAddress, agentProbes)
}

func (n *node) startRuntime(context.Context) (err error) {
	n.runtime, err = newRuntime(n.dir, n.nriSocket())
	return err
}

// startPrograms starts the agent and the patcher, and waits until both serve.
func (n *node) startPrograms(ctx context.Context) error {
	config := filepath.Join(n.dir, "config.toml")
	if err := os.WriteFile(config, []byte(n.config()), 0o600); err != nil {
		return err
	}
	common := []string{"--config", config, "--kubeconfig", n.cluster.Kubeconfig(), "--node-name", nodeName}
	for _, program := range []struct{ name, address string }{{agentName, agentAddress}, {patcherName, patcherAddress}} {
		args := common
		if program.name == patcherName {
			args = append(args, "--http-address", program.address, "--probe-address", patcherProbes)
		}
		if err := n.startProgram(program.name, args); err != nil {
			return err
		}
		if err := waitReady(ctx, program.address); err != nil {
			log, _ := os.ReadFile(n.log(program.name))
			return fmt.Errorf("%s: %w\n%s", program.name, err, log)
		}
	}
	return nil
}

func (n *node) log(program string) string { return filepath.Join(n.dir, program+".log") }

func (n *node) startProgram(name string, args []string) error {
	log, err := os.Create(n.log(name))
	if err != nil {
		return err
	}
	defer log.Close()
	program := exec.Command(filepath.Join(n.build, "bin", name), args...)
	program.Env = append(os.Environ(), "GPUSIM_STATE="+filepath.Join(n.dir, "gpusim", "state"))
	program.Stdout, program.Stderr = log, log
	// The agent's mounts end with the agent, and are not visible to the
	// machine.
	program.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := program.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	n.programs[name] = program
	return nil
}

func waitReady(ctx context.Context, address string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = ready(ctx, address)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the program is ready, for %v: %w", patience, last)
	}
	return nil
}

func ready(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// close stops the programs and the cluster.
func (n *node) close() error {
	var errs []error
	for _, program := range n.programs {
		errs = append(errs, program.Process.Kill())
		_ = program.Wait() // stop killed the program
	}
	if n.runtime != nil {
		n.runtime.close()
	}
	if n.cluster != nil {
		errs = append(errs, n.cluster.Down())
	}
	return errors.Join(errs...)
}
