// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// deed is an action of a hostile tenant by a pod.
type deed struct {
	name string
	fill func(*draft, *rand.Rand)
	// again is the number of times that the tenant deletes the running pod by force and creates the
	// pod again.
	again int
}

// targetVariable contains the address of the agent's metrics.
const targetVariable = "TARGET"

// deeds are the deeds that tenants do in a random order, all equally often.
var deeds = []deed{
	{name: "grow the usage page", fill: attacks("attack --way grow --duration 2")},
	{name: "truncate the usage page", fill: attacks("attack --way shrink --duration 2")},
	{name: "write noise on the usage page", fill: attacks("attack --way scribble --duration 2")},
	{name: "lock the usage page", fill: locks},
	{name: "lease the pages", fill: attacks("attack --way lease --duration 4")},
	{name: "lease our files", fill: attacks("attack --way lease-files --duration 4")},
	{name: "forge the usage page", fill: attacks("pester --way forge --duration 2", "pester --way forge-time --duration 2", "pester --way forge-spent --duration 2")},
	{name: "flood the socket", fill: attacks("pester --way flood --duration 2", "pester --way fuzz --duration 2", "pester --way garbage --duration 2")},
	{name: "hold the socket", fill: attacks("pester --way half-open --duration 10")},
	{name: "flood the metrics", fill: attacksWithoutGPU("attack --way scrape --duration 2 --address $" + targetVariable)},
	{name: "read the metrics slowly", fill: attacksWithoutGPU("attack --way slow --duration 10 --address $" + targetVariable)},
	{name: "send half of a request for the metrics", fill: attacksWithoutGPU("attack --way half --duration 10 --address $" + targetVariable)},
	{name: "rename above our mounts", fill: renames},
	{name: "remove ld.so.preload by a sidecar", fill: unlinks},
	{name: "mount over ours", fill: covers},
	{name: "namespaces", fill: attacks("attack --way namespaces --duration 2")},
	{name: "user namespace", fill: userNamespace},
	{name: "64 containers with requests", fill: crowd64},
	{name: "many init containers with requests", fill: manyInit},
	{name: "forged mirror pod", fill: mirror},
	{name: "namesakes", fill: hangs, again: 4},
	{name: "other ways to request GPUs", fill: otherWays},
	{name: "all GPUs by environment", fill: allVisible},
	{name: "crash loop", fill: crashes},
	{name: "long names", fill: long},
	{name: "long texts", fill: longTexts},
	{name: "fork", fill: attacks("attack --way fork --duration 5")},
	{name: "bypass the library", fill: around},
}

// repeat returns a script that repeats a command without end, even if the command finds no target.
func repeat(command string) string {
	return "trap '' TERM; while :; do " + command + "; sleep 0.1; done"
}

// tiny returns a request for a part of a GPU, for a container that does not use the GPU.
func tiny() ask { return askMemory(64) }

// attacks returns a function that makes a pod repeat one of these commands.
func attacks(commands ...string) func(*draft, *rand.Rand) {
	return func(d *draft, r *rand.Rand) {
		c := d.container("main", tiny(), false, repeat(commands[r.IntN(len(commands))]))
		if r.IntN(2) == 0 {
			user := int64(1000)
			c.SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
		}
		d.pod.Spec.Containers = []corev1.Container{c}
		d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
}

// attacksWithoutGPU returns a function that makes a pod without a GPU repeat a command.
func attacksWithoutGPU(command string) func(*draft, *rand.Rand) {
	return func(d *draft, _ *rand.Rand) {
		d.pod.Spec.Containers = []corev1.Container{d.container("main", ask{}, false, repeat(command))}
	}
}

// locks makes a pod set locks, which take some seconds of processor time.
func locks(d *draft, r *rand.Rand) {
	attacks("attack --way lock --duration 100")(d, r)
	d.life = between(r, 20*time.Second, 30*time.Second)
}

// volume adds an emptyDir to the pod and mounts it in the container.
func (d *draft) volume(c *corev1.Container, name, path string) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	for i := range d.pod.Spec.Volumes {
		if d.pod.Spec.Volumes[i].Name == name {
			return
		}
	}
	d.pod.Spec.Volumes = append(d.pod.Spec.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

func renames(d *draft, r *rand.Rand) {
	c := d.container("main", askMemory(700), false, repeat("attack --way rename --duration 1; fill --max 16MiB >/dev/null"))
	d.volume(&c, "above", []string{"/usr/local", "/run"}[r.IntN(2)])
	d.pod.Spec.Containers = []corev1.Container{c}
}

func unlinks(d *draft, _ *rand.Rand) {
	main := d.container("main", askMemory(700), false, repeat("sleep 0.5; fill --max 16MiB >/dev/null"))
	d.volume(&main, "above", "/etc")
	beside := d.container("beside", ask{}, false, repeat("attack --way unlink --duration 2"))
	d.volume(&beside, "above", "/shared")
	d.pod.Spec.Containers = []corev1.Container{main, beside}
}

// covers makes a pod mount volumes over our files. The agent refuses the pod repeatedly, each time
// with an Event.
func covers(d *draft, r *rand.Rand) {
	paths := []string{"/usr/local/nri-vgpu", "/usr/local/../local/nri-vgpu/lib/", "/run/nri-vgpu", testbed.Detours + "/home", testbed.Detours + "/run", testbed.Detours + "/etc"}
	c := d.container("main", tiny(), false, "exec sleep "+forEver)
	d.volume(&c, "over", paths[r.IntN(len(paths))])
	d.pod.Spec.Containers = []corev1.Container{c}
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
}

func userNamespace(d *draft, r *rand.Rand) {
	attacks("attack --way grow --duration 1; attack --way rename --duration 1")(d, r)
	d.pod.Spec.HostUsers = new(bool)
}

func crowd64(d *draft, _ *rand.Rand) {
	for i := range 64 {
		c := d.container(fmt.Sprintf("c%d", i), askMemory(1), false, "exec sleep "+forEver)
		d.pod.Spec.Containers = append(d.pod.Spec.Containers, c)
	}
}

// manyInit adds many init containers. All init containers together cost the tenant one container's
// quota, because the scheduler counts only the largest init container.
func manyInit(d *draft, _ *rand.Rand) {
	for i := range most(d.calm) {
		c := testbed.Container(fmt.Sprintf("i%d", i), testbed.Limits{testbed.Memory: 1}, "sleep", forEver)
		d.pod.Spec.InitContainers = append(d.pod.Spec.InitContainers, c)
	}
	d.pod.Spec.Containers = []corev1.Container{d.container("main", askMemory(1), false, "exec sleep "+forEver)}
}

// most returns the number of init containers of a pod. With 3,000 containers of any kind, kubelet
// starts no other container for twelve seconds. A calm phase could then not measure the cost of our
// parts.
func most(calm bool) int {
	if calm {
		return 300
	}
	return 3000
}

const mirrorAnnotation = "kubernetes.io/config.mirror"

// mirror makes a pod claim to be the mirror of a static pod. The tenant chooses the static pod.
func mirror(d *draft, _ *rand.Rand) {
	d.pod.Spec.Containers = []corev1.Container{d.container("main", tiny(), false, "exec sleep "+forEver)}
	d.pod.Annotations = map[string]string{mirrorAnnotation: ""}
	d.pod.Finalizers = []string{"example.com/stays"}
}

func hangs(d *draft, _ *rand.Rand) {
	grace := int64(30)
	d.pod.Spec.TerminationGracePeriodSeconds = &grace
	d.pod.Spec.Containers = []corev1.Container{d.container("main", tiny(), false, repeat("sleep 1"))}
}

// otherWays makes a pod request GPUs in forbidden ways instead of by resources.
func otherWays(d *draft, r *rand.Rand) {
	c := d.container("main", ask{}, false, "exec sleep "+forEver)
	switch r.IntN(4) {
	case 0:
		d.pod.Annotations = map[string]string{"cdi.k8s.io/all": "nvidia.com/gpu=all"}
	case 1:
		d.pod.Annotations = map[string]string{"cdi.k8s.io/ours": "nri-vgpu.io/env=void"}
	case 2:
		d.volume(&c, "devices", "/var/run/nvidia-container-devices/all")
	default:
		c = d.container("main", tiny(), false, "exec sleep "+forEver)
		d.pod.Annotations = map[string]string{"cdi.k8s.io/both": "nri-vgpu.io/env=preload"}
	}
	d.pod.Spec.Containers = []corev1.Container{c}
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
}

func allVisible(d *draft, _ *rand.Rand) {
	c := d.container("main", ask{}, false, repeat("fill --max 16MiB >/dev/null; sleep 1"))
	c.Image = testbed.CUDAImage
	c.Env = append(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"})
	d.pod.Spec.Containers = []corev1.Container{c}
}

func crashes(d *draft, _ *rand.Rand) {
	for i := range 3 {
		c := d.container(fmt.Sprintf("c%d", i), tiny(), false, "exit 1")
		d.pod.Spec.Containers = append(d.pod.Spec.Containers, c)
	}
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
}

// long makes a pod use names and values of the greatest length that the API server accepts.
func long(d *draft, _ *rand.Rand) {
	d.pod.Name += strings.Repeat("-long", (253-len(d.pod.Name))/5)
	c := d.container(strings.Repeat("c", 63), tiny(), false, "exec sleep "+forEver)
	for i := range 1000 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("E%d", i), Value: strings.Repeat("x", 90)})
	}
	d.pod.Spec.Containers = []corev1.Container{c}
	d.pod.Annotations = map[string]string{"example.com/long": strings.Repeat("x", 200000)}
	for i := range 200 {
		d.pod.Labels[fmt.Sprintf("example.com/%s-%d", strings.Repeat("l", 55), i)] = strings.Repeat("v", 63)
	}
}

// longTexts makes the messages between the runtime and its plugins exceed their bound. A refusal
// quotes the path of a volume; quoting expands each byte of the path to four bytes. A plugin that
// registers receives all labels and variables.
func longTexts(d *draft, r *rand.Rand) {
	c := d.container("main", tiny(), false, "exec sleep "+forEver)
	switch r.IntN(3) {
	case 0:
		d.volume(&c, "long", "/usr/local/nri-vgpu/"+strings.Repeat("\x7f", 1<<20))
	case 1:
		for i := range 4800 {
			d.pod.Labels[fmt.Sprintf("example.com/%055d", i)] = strings.Repeat("v", 63)
		}
	default:
		for i := range 40000 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("E%d", i), Value: "x"})
		}
	}
	d.pod.Spec.Containers = []corev1.Container{c}
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
}

// around makes a pod use a GPU without the library, within the pod's request. The agent detects a
// bypass of the library, and does not limit the bypass.
func around(d *draft, r *rand.Rand) {
	commands := []string{
		"gpusim hold --memory 64MiB /dev/gpusim",
		"LD_PRELOAD= fill --library /usr/lib/x86_64-linux-gnu/libcuda.so.1 --max 16MiB --hold 2 >/dev/null",
	}
	c := d.container("main", askMemory(1000), false, repeat(commands[r.IntN(len(commands))]))
	d.pod.Spec.Containers = []corev1.Container{c}
	d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
}
