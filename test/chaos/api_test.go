// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// callPatience bounds a request to an API server that may be down or stopped.
const callPatience = 5 * time.Second

const manifestDir = "etc/kubernetes/manifests"

func call(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	return do(ctx)
}

func (w *world) createPod(pod *corev1.Pod) (created *corev1.Pod, err error) {
	err = call(func(ctx context.Context) error {
		created, err = w.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	return created, err
}

// deletePod deletes the pod of this name if it still belongs to the subject.
func (w *world) deletePod(name, subject string, force bool) error {
	return call(func(ctx context.Context) error {
		pods := w.Client.CoreV1().Pods(metav1.NamespaceDefault)
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && pod.Labels[subjectLabel] != subject {
			return nil
		}
		if err != nil {
			return err
		}
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
		if force {
			options.GracePeriodSeconds = new(int64)
		}
		return gone(pods.Delete(ctx, name, options))
	})
}

func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (w *world) createJob(job *batchv1.Job) error {
	return call(func(ctx context.Context) error {
		_, err := w.Client.BatchV1().Jobs(metav1.NamespaceDefault).Create(ctx, job, metav1.CreateOptions{})
		return err
	})
}

func (w *world) deleteJob(name string) error {
	background := metav1.DeletePropagationBackground
	return call(func(ctx context.Context) error {
		return gone(w.Client.BatchV1().Jobs(metav1.NamespaceDefault).
			Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}))
	})
}

func (w *world) writeManifest(key string, pod *corev1.Pod) error {
	content, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	dir := filepath.Join(w.Cluster.Root(), manifestDir)
	// Kubelet ignores names that begin with a dot.
	scratch := filepath.Join(dir, "."+key)
	if err := os.WriteFile(scratch, content, 0o600); err != nil {
		return err
	}
	return os.Rename(scratch, filepath.Join(dir, key+".yaml"))
}

func (w *world) removeManifest(key string) error {
	err := os.Remove(filepath.Join(w.Cluster.Root(), manifestDir, key+".yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (w *world) addEphemeral(pod string, more corev1.EphemeralContainer) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"ephemeralContainers": []any{more}}})
	if err != nil {
		return err
	}
	return call(func(ctx context.Context) error {
		_, err := w.Client.CoreV1().Pods(metav1.NamespaceDefault).Patch(ctx, pod,
			types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "ephemeralcontainers")
		return err
	})
}

// left returns the remaining pods of subjects that are not steady.
func (w *world) left() (names []string, err error) {
	err = call(func(ctx context.Context) error {
		pods, err := w.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: subjectLabel})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if one := w.subjects.get(pod.Labels[subjectLabel]); one == nil || !one.steady {
				names = append(names, fmt.Sprintf("%s/%s (%s)", pod.Namespace, pod.Name, pod.Status.Phase))
			}
		}
		return nil
	})
	return names, err
}
