// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxAnswer bounds kubelet's answer, in bytes. Kubelet's own bound is 16 MiB.
const maxAnswer = 16 << 20

// PodResources is kubelet's PodResources socket.
type PodResources struct{ Socket string }

// Devices returns the ids of the devices that are healthy or in use, by resource. Each call makes a
// new connection, because kubelet replaces the socket at its start.
func (p PodResources) Devices(ctx context.Context) (map[string][]string, error) {
	connection, err := grpc.NewClient("unix://"+p.Socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, fmt.Errorf("connect to kubelet at %s: %w", p.Socket, err)
	}
	defer connection.Close()
	client := podresources.NewPodResourcesListerClient(connection)
	healthy, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list kubelet's devices at %s: %w", p.Socket, err)
	}
	used, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the devices of pods at %s: %w", p.Socket, err)
	}
	all := healthy.GetDevices()
	for _, pod := range used.GetPodResources() {
		for _, container := range pod.GetContainers() {
			all = append(all, container.GetDevices()...)
		}
	}
	found := map[string][]string{}
	for _, d := range all {
		found[d.GetResourceName()] = append(found[d.GetResourceName()], d.GetDeviceIds()...)
	}
	for name := range found {
		slices.Sort(found[name])
		found[name] = slices.Compact(found[name])
	}
	return found, nil
}
