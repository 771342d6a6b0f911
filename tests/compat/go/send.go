package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const sendersAtOnce = 8

// send sends the messages PREFIX-0 to PREFIX-(COUNT-1) at most RATE a second, each until it is acknowledged. The user
// comes from RAFTMQ_ACCESS_KEY and RAFTMQ_SECRET_KEY.
func send(topic string, name string, count int, perSecond float64) {
	plain, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(name+"-senders"),
		producer.WithRetry(2),
		producer.WithCredentials(primitive.Credentials{
			AccessKey: os.Getenv("RAFTMQ_ACCESS_KEY"), SecretKey: os.Getenv("RAFTMQ_SECRET_KEY")}),
	)
	check(err)
	check(plain.Start())
	var next, acked, failed atomic.Int64
	var sending sync.WaitGroup
	begun := time.Now()
	for range sendersAtOnce {
		sending.Add(1)
		go func() {
			defer sending.Done()
			for number := next.Add(1) - 1; number < int64(count); number = next.Add(1) - 1 {
				time.Sleep(time.Until(begun.Add(time.Duration(float64(number) / perSecond * float64(time.Second)))))
				sendUntilAcked(plain, topic, fmt.Sprintf("%s-%d", name, number), &failed)
				if done := acked.Add(1); done%200 == 0 {
					say("acked", fields{"count": done})
				}
			}
		}()
	}
	sending.Wait()
	say("done", fields{"count": acked.Load(), "failed": failed.Load()})
	check(plain.Shutdown())
}

func sendUntilAcked(plain rocketmq.Producer, topic string, key string, failed *atomic.Int64) {
	for {
		result, err := plain.SendSync(context.Background(), primitive.NewMessage(topic, []byte(key)))
		if err == nil && result.Status == primitive.SendOK {
			return
		}
		if failed.Add(1)%100 == 1 {
			fmt.Fprintln(os.Stderr, key, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func sendFromArguments(topic string, name string, count string, perSecond string) {
	messages, err := strconv.Atoi(count)
	check(err)
	rate, err := strconv.ParseFloat(perSecond, 64)
	check(err)
	send(topic, name, messages, rate)
}
